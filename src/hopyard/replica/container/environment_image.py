"""Images with the packages of requirements, each built once from a base image and kept by the engine.

The requirements are resolved once per base image. The lock's content and the base image are the key of the
built image; the base image's id covers its Python version and platform, too. Images are built in
containers (`package_container`), where code of packages may run.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from blake3 import blake3

from hopyard.container_engine.container_labels import IMAGE_NAME, built_images, home_tag
from hopyard.container_engine.engine_api import EngineApi
from hopyard.domain.ids import Digest
from hopyard.domain.run import Environment
from hopyard.domain.urls import collect_credentials, insert_credentials, strip_credentials
from hopyard.errors import ContainerError
from hopyard.file_locks import try_lock
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.replica.container.container_image import ContainerImage, find_image
from hopyard.replica.container.package_container import (
    CONSTRAINTS,
    OUTPUT,
    PackageContainer,
    without_mounted_links,
)
from hopyard.replica.local_sources import is_local, local_digest, reject_local_requirements
from hopyard.replica.package_installer import index_settings, split_passwords
from hopyard.replica.python_environment import locked_packages
from hopyard.replica.requirement_text import NO_INDEX, has_hashes, hash_lock, split_constraints

MAX_IMAGES = 16  # more are removed, the least recently used first, unless a run uses them
_RECIPE = 1  # of an image; another one builds all images again
# the settings of uv that mean something in a container
_PASSED_SETTINGS = (
    "UV_INDEX",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_NO_INDEX",
    "UV_OFFLINE",
    "UV_HTTP_TIMEOUT",
    "UV_INSECURE_HOST",
    "UV_EXCLUDE_NEWER",
)


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """reference: of the image. lock: the pinned requirements. resolved: whether the lock is not from the
    spec."""

    reference: str
    lock: bytes
    resolved: bool


@dataclass(frozen=True, slots=True)
class EnvironmentImages:
    """The images of one home.

    root: of locks and the times of use. fetch, log, record_cache_key, secrets, user: as in `Environments`.
    container: returns the container of this replica in which packages are installed, for a base image.
    """

    api: EngineApi
    home: Path
    root: Path
    fetch: Callable[[Digest], bytes]
    log: Callable[[str], None]
    container: Callable[..., PackageContainer]
    record_cache_key: Callable[[Digest, Path], None] = lambda _digest, _path: None
    secrets: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    def prepare(self, environment: Environment, base: str, stack: ExitStack, *, cwd: Path) -> BuiltImage:
        """Returns the image of this environment and builds it if it is missing. It is in use until `stack`
        closes. base: the reference of the base image, which is pulled if necessary. cwd: the working folder.
        Raises PrepareFailed, ContainerError."""
        image = find_image(self.api, base, self.log)
        settings, private = split_passwords(index_settings())
        settings = {name: value for name, value in settings.items() if name.startswith(_PASSED_SETTINGS)}
        run = partial(self.container, image, base, settings=settings, secrets=self.secrets)
        requirements = b"" if environment.requirements is None else self.fetch(environment.requirements)
        if environment.lock is not None:
            lock = self.fetch(environment.lock)
        else:
            lock = self._resolve(requirements, image, run(), private, cwd)
        lock = strip_credentials(lock.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        key = self._key("image", home_tag(self.home), image.id, lock, cwd=cwd)
        text = _with_lines(_add_credentials(lock, requirements), private)
        while True:
            self._build(key, lock, text, base, run())
            with ExitStack() as use:
                use.enter_context(_locked(self.root / f"{key}.use", fcntl.LOCK_SH))
                if self._exists(key):
                    write_atomically(self._marker(key), b"")
                    stack.enter_context(use.pop_all())
                    break
        for digest in (environment.requirements, Digest(blake3(lock).hexdigest())):
            if digest is not None:
                self.record_cache_key(digest, self._marker(key))
        return BuiltImage(f"{IMAGE_NAME}:{key}", lock, environment.lock is None)

    def _marker(self, key: str) -> Path:
        """Returns the file of which the time is that of the last use."""
        return self.root / f"{key}.image"

    def _key(self, *parts: str | bytes, cwd: Path) -> str:
        """Returns a digest of the parts, of which the last is a text of requirements. Packages that may
        differ between users, by a secret in a URL or by files of the code, belong to one user."""
        text = parts[-1]
        assert isinstance(text, bytes)
        is_own = b"${" in text or is_local(text)
        values = [str(_RECIPE).encode(), self.user.encode() if is_own else b""]
        values += [part if isinstance(part, bytes) else part.encode() for part in parts]
        values.append(local_digest(text, locked_packages(text), cwd))
        return blake3(b"\n".join(b"%d %s" % (len(value), value) for value in values)).hexdigest()[:32]

    def _resolve(
        self,
        text: bytes,
        image: ContainerImage,
        container: PackageContainer,
        private: Sequence[str],
        cwd: Path,
    ) -> bytes:
        """Returns the lock of requirements for the Python of an image."""
        given = hash_lock(text)
        if given is not None:
            return given
        settings = str(sorted(container.settings.items()))
        name = self._key("lock", image.id, settings, text, cwd=cwd)
        file = self.root / "locks" / f"{name}.txt"
        make_folder(file.parent)
        with _locked(file.with_suffix(".lock"), fcntl.LOCK_EX):
            if file.exists():
                return file.read_bytes()
            self.log(f"resolving requirements for image {container.reference}")
            plain, constraints = split_constraints(text)
            argv = [
                *("pip", "compile", "-", "-o", str(OUTPUT), "--no-header", "--no-annotate", "-q"),
                *("--emit-index-url", "--emit-find-links"),
            ]
            argv += ["--constraints", str(CONSTRAINTS)] if constraints else []
            output = container.run(
                argv,
                _with_lines(plain, private),
                activity=f"the requirements cannot be met in image {container.reference}",
                constraints=constraints,
                prefers_installed=True,
            )
            lock = without_mounted_links(output)
            lock = strip_credentials(lock.decode(errors="surrogateescape")).encode(errors="surrogateescape")
            reject_local_requirements(lock.decode(errors="surrogateescape"))
            if NO_INDEX.search(text):  # uv has no option to emit it
                lock = b"--no-index\n" + lock
            write_atomically(file, lock)
            return lock

    def _build(self, key: str, lock: bytes, text: bytes, base: str, container: PackageContainer) -> None:
        make_folder(self.root)
        with _locked(self.root / f"{key}.lock", fcntl.LOCK_EX):
            if self._exists(key):
                return
            self.log(f"building image {IMAGE_NAME}:{key[:8]} from {base}")
            verified = has_hashes(lock)
            argv = [
                *("pip", "install", "-q", "--break-system-packages", "--no-cache"),
                *("--compile-bytecode", "-r", "-"),
                *(("--require-hashes",) if verified else ("--no-deps",)),
            ]
            container.run(
                argv,
                text,
                activity=f"the requirements cannot be installed in image {base}",
                commit=f"{IMAGE_NAME}:{key}",
            )
            write_atomically(self._marker(key), b"")
        self._evict(key)

    def _exists(self, key: str) -> bool:
        try:
            self.api.get(f"/images/{IMAGE_NAME}:{key}/json")
        except ContainerError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _evict(self, kept: str) -> None:
        """Removes unused images, the least recently used first, until `MAX_IMAGES` are left. kept: the key of
        an image that is about to be used."""
        used = {key: _modified_at(self._marker(key)) for key in built_images(self.api, self.home)}
        oldest = sorted(used.keys() - {kept}, key=lambda key: (used[key], key))
        for key in oldest[: max(0, len(used) - MAX_IMAGES)]:
            with (
                suppress(OSError, ContainerError),  # a container of the user may use it
                try_lock(self.root / f"{key}.lock") as is_idle,
                try_lock(self.root / f"{key}.use") as is_unused,
            ):
                if is_idle and is_unused:
                    self.api.delete(f"/images/{IMAGE_NAME}:{key}")
                    self._marker(key).unlink(missing_ok=True)


def _with_lines(text: bytes, lines: Sequence[str]) -> bytes:
    return b"\n".join([text, *(line.encode(errors="surrogateescape") for line in lines)])


def _add_credentials(lock: bytes, requirements: bytes) -> bytes:
    """Returns the lock with the user names and passwords of the requirements and of this node's settings."""
    texts = [*index_settings().values(), requirements.decode(errors="replace")]
    credentials = collect_credentials(texts) if b"://" in lock else {}
    text = insert_credentials(lock.decode(errors="surrogateescape"), credentials)
    return text.encode(errors="surrogateescape")


def _modified_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _locked(file: Path, mode: int) -> Iterator[None]:
    descriptor = open_file(file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, mode)
        yield
    finally:
        os.close(descriptor)
