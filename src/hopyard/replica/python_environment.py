"""The Python for the script: the caller's interpreter, or an environment built once per lock and shared by
all runs of a node.

A requirements file is resolved once per digest, Python version and platform. The lock's content, with Python
and platform, is the key of the environment. uv resolves, installs and unpacks.

That may execute a user's code: `setup.py` of a package without a wheel, or an interpreter of the user. Such
environments, their locks and their uv cache therefore belong to that user alone. uv gets a view of the home
(`replica.mount_namespace`) in which it can write to nothing else. All users share environments that an
interpreter of this machine makes from wheels. These have another uv cache, to which no user's code ever
writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from blake3 import blake3

from hopyard.datasets.fingerprint import fingerprint
from hopyard.domain.ids import Digest
from hopyard.domain.run import Environment
from hopyard.domain.urls import collect_credentials, insert_credentials, strip_credentials
from hopyard.private_files import make_folder, open_file, remove_tree, write_atomically
from hopyard.replica.errors import NodeFault, PrepareFailed
from hopyard.replica.local_sources import (
    FIND_LINKS,
    is_local,
    local_digest,
    reject_local_requirements,
)
from hopyard.replica.mount_namespace import MountView, apply_view, detect_isolation_mode
from hopyard.replica.package_installer import index_settings, run_uv, split_passwords
from hopyard.replica.requirement_text import NO_INDEX, has_hashes, hash_lock, split_constraints

# Copies, so that an environment shares no files with uv's cache and other environments.
_UV_COPY_OPTIONS = ("--link-mode", "copy")
MAX_ENVIRONMENTS = (
    16  # more environments than this are evicted, the least recently used first, unless a run uses them
)
MAX_CACHE_BYTES = 20 << 30  # a larger uv cache is removed, and so is one that is unused for longer than:
MAX_CACHE_AGE_S = 30 * 86400
_SECRET = "HOPYARD_SECRET_"
_READY_FILE, _LOCKS_DIR = ".ready", "locks"
_LOCK_FORMAT = 2  # of stored locks
_RELEASE = re.compile(r"3\.(\d+)\.(\d+)")  # the folder of a version of pyenv


@dataclass(frozen=True, slots=True)
class PythonInterpreter:
    """An interpreter for the script.

    path: absolute, not resolved (a virtual environment is identified by the path of its link). virtual_env:
    set for an environment that was built. lock: the pinned requirements as bytes, None without requirements.
    resolved: whether the lock is new, not from the spec. image: that was built, in which `path` is.
    """

    path: str
    virtual_env: Path | None = None
    lock: bytes | None = None
    resolved: bool = False
    image: str = ""


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of one node, below `root`.

    fetch: returns the bytes of a blob. log: receives the current step, for users. record_cache_key: called
    with the digest of each available input and a file that exists as long as it is available. record_note:
    writes to the run's events. secrets: for `${NAME}` in URLs of the requirements. user: of the run. view:
    the view of the home for uv and the programs that it starts; None means everything.
    """

    root: Path
    fetch: Callable[[Digest], bytes]
    log: Callable[[str], None]
    record_cache_key: Callable[[Digest, Path], None] = lambda _digest, _path: None
    record_note: Callable[[str], None] = lambda _text: None
    secrets: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    view: MountView | None = None

    def prepare(self, environment_spec: Environment, stack: ExitStack, *, cwd: Path) -> PythonInterpreter:
        """Returns the interpreter for this spec and builds what is missing. It is in use until `stack`
        closes.

        cwd: the base of relative paths in a requirements file. Raises PrepareFailed.
        """
        base = environment_spec.interpreter or _find_python(environment_spec.python)
        if not os.access(base, os.X_OK):
            raise PrepareFailed(f"the interpreter {base} is not on this node")
        if environment_spec.requirements is None and environment_spec.lock is None:
            return PythonInterpreter(base)
        shared_base = _shared_interpreter(base)
        base = shared_base or base
        version, platform_tag = self._version_and_platform(base)
        resolved = environment_spec.lock is None
        if environment_spec.lock is not None:
            lock = self.fetch(environment_spec.lock)
        else:
            assert environment_spec.requirements is not None
            lock = self._resolve(environment_spec.requirements, base, version, platform_tag, cwd)
        # an older replica's lock may contain credentials
        lock = strip_credentials(lock.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        versions = locked_packages(lock)
        key = blake3(
            lock + f"\n{version}\n{platform_tag}".encode() + local_digest(lock, versions, cwd)
        ).hexdigest()[:32]
        folder = (
            self._use_shared(self.root / key, lock, base, stack, environment_spec.requirements)
            if shared_base and not is_local(lock)
            else None
        )
        if folder is None:
            folder = (
                self.root
                / blake3(f"{key}\n{self.user}\n{base}".encode(errors="surrogateescape")).hexdigest()[:32]
            )
            self._use(
                folder,
                lock,
                base,
                stack,
                requested_version=environment_spec.requirements,
                is_own=True,
                cwd=cwd if is_local(lock) else None,
            )
        for digest in (environment_spec.requirements, Digest(blake3(lock).hexdigest())):
            if digest is not None:
                self.record_cache_key(digest, folder / _READY_FILE)
        return PythonInterpreter(str(folder / "bin" / "python"), folder, lock, resolved)

    def _resolve(self, requirements: Digest, base: str, version: str, platform_tag: str, cwd: Path) -> bytes:
        name = blake3(
            f"{_LOCK_FORMAT}\n{requirements}\n{version}\n{platform_tag}\n{self.user}\n{base}"
            f"\n{sorted(index_settings().items())}".encode(errors="surrogateescape")
        ).hexdigest()[:32]
        lock_file = self.root / _LOCKS_DIR / f"{name}.txt"
        # a local folder may contain other versions now, and an archive other requirements
        if lock_file.exists() and not is_local(lock_file.read_bytes()):
            return lock_file.read_bytes()
        make_folder(lock_file.parent)
        text = self.fetch(requirements)
        given_lock = hash_lock(text)
        if given_lock is not None:
            return given_lock
        with _lock_file(lock_file.with_suffix(".lock"), fcntl.LOCK_EX) as descriptor:
            if not lock_file.exists() or is_local(lock_file.read_bytes()):
                self.log("resolving requirements")
                text, constraints = split_constraints(text)
                constraint_options = _write_constraints(lock_file, constraints)
                # the node's own links are available again at the installation
                links = ("--emit-find-links",) if FIND_LINKS.search(text) else ()
                argv = [
                    "pip",
                    "compile",
                    "-",
                    "--no-header",
                    "--no-annotate",
                    "--emit-index-url",
                    *links,
                    *constraint_options,
                    "-q",
                    "--python",
                    base,
                ]
                resolved = self._uv(
                    argv,
                    descriptor,
                    cwd=cwd,
                    extra_env=text,
                    activity="the requirements cannot be met",
                    is_own=True,
                )
                # the lock is stored with the run, where all users can read it
                lock = strip_credentials(resolved.decode(errors="surrogateescape"))
                reject_local_requirements(lock)
                # uv has no option to emit it; without it, packages would be requested from the default index
                if NO_INDEX.search(text):
                    lock = f"--no-index\n{lock}"
                write_atomically(lock_file, lock.encode(errors="surrogateescape"))
        return lock_file.read_bytes()

    def _use_shared(
        self, folder: Path, lock: bytes, python: str, stack: ExitStack, requested_version: Digest | None
    ) -> Path | None:
        """Returns the environment that all users share; None if some package has no wheel."""
        unshared_marker = folder.with_name(f"{folder.name}.unshared")
        if unshared_marker.exists():
            return None
        try:
            self._use(folder, lock, python, stack, requested_version=requested_version, is_own=False)
        except NodeFault:
            raise
        except PrepareFailed:
            remove_tree(folder)
            write_atomically(unshared_marker, b"")
            return None
        return folder

    def _use(
        self,
        folder: Path,
        lock: bytes,
        python: str,
        stack: ExitStack,
        *,
        requested_version: Digest | None,
        is_own: bool,
        cwd: Path | None = None,
    ) -> None:
        """Builds the environment if necessary and marks it as in use. Starts again if another run evicted it
        in between. cwd: the base of relative paths in the lock."""
        while True:
            self._build(folder, lock, python, requested_version, is_own, cwd)
            with ExitStack() as use_stack:
                use_stack.enter_context(_lock_file(folder.with_name(f"{folder.name}.use"), fcntl.LOCK_SH))
                if (folder / _READY_FILE).exists():
                    os.utime(folder / _READY_FILE)
                    stack.enter_context(use_stack.pop_all())
                    return

    def _build(
        self,
        folder: Path,
        lock: bytes,
        python: str,
        requested_version: Digest | None,
        is_own: bool,
        cwd: Path | None,
    ) -> None:
        if is_complete(folder):
            return
        make_folder(self.root)
        with _lock_file(folder.with_name(f"{folder.name}.lock"), fcntl.LOCK_EX) as descriptor:
            if is_complete(folder):
                return  # another run built it in the meantime
            if (folder / _READY_FILE).exists() and _fingerprint(folder).exists():
                self.record_note(f"environment {folder.name[:8]} was changed on this node: building it again")
            self.log(f"building environment {folder.name[:8]}")
            remove_tree(folder)  # including the rest of a build that was killed
            make_folder(folder)
            argv = ["venv", "-q", "--allow-existing", "--python", python, str(folder)]
            self._uv(argv, descriptor, activity="cannot create an environment", is_own=is_own, into=folder)
            no_code = () if is_own else ("--no-build",)
            verified = ("--require-hashes",) if has_hashes(lock) else ()
            argv = [
                "pip",
                *(("install", "-r") if verified else ("sync",)),
                "-",
                "-q",
                *verified,
                *_UV_COPY_OPTIONS,
                *no_code,
                *(() if verified else ("--allow-empty-requirements",)),
                "--python",
                str(folder / "bin" / "python"),
            ]
            lock_with_credentials = self._add_credentials(lock, requested_version)
            self._uv(
                argv,
                descriptor,
                extra_env=lock_with_credentials,
                activity="the requirements cannot be installed",
                is_own=is_own,
                into=folder,
                cwd=cwd,
            )
            self._compile(python, folder)
            write_atomically(folder / _READY_FILE, json.dumps({"built_at": time.time()}).encode())
            _make_read_only(folder)
            write_atomically(_fingerprint(folder), fingerprint(folder, excluded=_READY_FILE).encode())
        self._evict()
        self._trim_caches()

    def _add_credentials(self, lock: bytes, requested_version: Digest | None) -> bytes:
        """Returns the lock for uv: with user names and passwords from this machine's settings and from the
        requirements file."""
        texts = list(index_settings().values())
        if requested_version is not None and b"://" in lock:
            texts.append(self.fetch(requested_version).decode(errors="replace"))
        credentials = collect_credentials(texts)
        return (
            insert_credentials(lock.decode(errors="surrogateescape"), credentials).encode(
                errors="surrogateescape"
            )
            if credentials
            else lock
        )

    def _compile(self, python: str, folder: Path) -> None:
        """Compiles the packages, since Python cannot write to the environment later.

        Without `site`: a `.pth` file of a package would run its code. Files that cannot be compiled, such as
        templates, are skipped.
        """
        self._run(
            [python, "-I", "-S", "-m", "compileall", "-q", "-j", "0", str(folder / "lib")], writable=[folder]
        )

    def _version_and_platform(self, base: str) -> tuple[str, str]:
        """Returns the Python version and the platform of an interpreter, without starting it if it is our
        own."""
        if os.path.realpath(base) == os.path.realpath(sys.executable):
            return platform.python_version(), sysconfig.get_platform()
        code = "import platform,sysconfig;print(platform.python_version(),sysconfig.get_platform())"
        try:
            result = self._run([base, "-I", "-c", code])
            result.check_returncode()
            fields = result.stdout.split()
            return fields[0].decode(), fields[1].decode()
        except (OSError, subprocess.CalledProcessError, IndexError) as error:
            raise PrepareFailed(f"the interpreter {base} does not work: {error}") from error

    def _uv(
        self,
        argv: Sequence[str],
        lock_descriptor: int | None,
        *,
        activity: str,
        is_own: bool,
        extra_env: bytes = b"",
        cwd: Path | None = None,
        into: Path | None = None,
    ) -> bytes:
        """Runs uv and returns its output. `lock_descriptor`: a lock that uv holds too, so that the lock
        outlives this process if only this process is killed."""
        caches = self.root.parent / "uv"
        name = f"users/{self.user}" if is_own else "common"
        cache = caches / name
        writable = [folder for folder in (cache, into) if folder is not None]
        # Under internal names: a secret such as UV_INDEX or LD_PRELOAD belongs to the run and must not affect
        # the
        # program that builds for all users.
        names = {f"${{{name}}}".encode(): f"${{{_SECRET}{name}}}".encode() for name in self.secrets}
        for public, internal in names.items():
            extra_env = extra_env.replace(public, internal)
        secrets = {_SECRET + name: value for name, value in self.secrets.items()}
        settings = index_settings()
        if is_own:
            settings, private = split_passwords(settings)
            if extra_env:
                extra_env = b"\n".join(
                    [extra_env, *(line.encode(errors="surrogateescape") for line in private)]
                )
        with _lock_file(caches / _LOCKS_DIR / name, fcntl.LOCK_SH) as cache_lock:
            os.utime(cache_lock)
            make_folder(cache)
            run = partial(
                self._run,
                lock_descriptor=[cache_lock] if lock_descriptor is None else [cache_lock, lock_descriptor],
                extra_env=extra_env,
                cwd=cwd,
                writable=writable,
            )
            output = run_uv(
                run,
                argv,
                activity=activity,
                extra_env=extra_env,
                cache=cache,
                settings=settings,
                secrets=secrets,
            )
        for public, internal in names.items():
            output = output.replace(internal, public)
        return output

    def _run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        lock_descriptor: Sequence[int] = (),
        extra_env: bytes = b"",
        cwd: Path | None = None,
        writable: Sequence[Path] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        view = self.view and replace(
            self.view, writable=[*self.view.writable, *(folder.resolve() for folder in writable)]
        )
        isolation_mode = detect_isolation_mode()
        try:
            return subprocess.run(
                argv,
                input=extra_env,
                capture_output=True,
                check=False,
                env=env,
                cwd=cwd,
                pass_fds=lock_descriptor,
                preexec_fn=None if view is None else partial(apply_view, view, isolation_mode),
            )
        except subprocess.SubprocessError as error:
            raise NodeFault(f"cannot create private mounts for a program: {error}") from error

    def _evict(self) -> None:
        """Removes unused environments, the least recently used first, until `MAX_ENVIRONMENTS` are left."""
        ready: list[tuple[float, Path]] = []
        for marker in self.root.glob(f"*/{_READY_FILE}"):
            with suppress(FileNotFoundError):  # another run evicts too
                ready.append((marker.stat().st_mtime, marker.parent))
        lock_mode = fcntl.LOCK_EX | fcntl.LOCK_NB
        for _, folder in sorted(ready)[: max(0, len(ready) - MAX_ENVIRONMENTS)]:
            with suppress(OSError):  # in use, or being rebuilt
                with (
                    _lock_file(folder.with_name(f"{folder.name}.lock"), lock_mode),
                    _lock_file(folder.with_name(f"{folder.name}.use"), lock_mode),
                ):
                    (folder / _READY_FILE).unlink()
                    remove_tree(folder)
                    _fingerprint(folder).unlink(missing_ok=True)

    def _trim_caches(self) -> None:
        """Removes uv caches that are too large or long unused, unless they are in use. uv fills
        them again."""
        caches = self.root.parent / "uv"
        locks = caches / _LOCKS_DIR
        for lock in (locks / "common", *locks.glob("users/*")):
            cache = caches / lock.relative_to(locks)
            with suppress(OSError):  # in use, or removed by another run
                is_old = lock.stat().st_mtime < time.time() - MAX_CACHE_AGE_S
                # Caches of other users were measured after their own builds.
                if is_old or (lock.name in ("common", self.user) and _disk_bytes(cache) > MAX_CACHE_BYTES):
                    with _lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                        remove_tree(cache)


def _disk_bytes(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def is_complete(folder: Path) -> bool:
    """Returns whether an environment was built and is unchanged since. Packages that a run installed into it
    would affect every other run."""
    try:
        return (folder / _READY_FILE).exists() and _fingerprint(folder).read_bytes() == fingerprint(
            folder, excluded=_READY_FILE
        ).encode()
    except OSError:
        return False


def mark_broken(folder: Path) -> None:
    """Makes the next run that needs this environment build it again. Raises OSError."""
    _fingerprint(folder).unlink(missing_ok=True)


def _fingerprint(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.seen")


def _make_read_only(folder: Path) -> None:
    """Removes the write permission from all files and sub-folders."""
    for parent, _, files in os.walk(folder):
        for name in files if parent == str(folder) else [*files, "."]:
            path = os.path.join(parent, name)
            if name != _READY_FILE and not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & ~0o222)


def _write_constraints(lock_file: Path, constraints: bytes) -> list[str]:
    """Returns uv's options for the constraints, which it reads from a file."""
    if not constraints:
        return []
    file = lock_file.with_suffix(".constraints")
    write_atomically(file, constraints)
    return ["--constraints", str(file)]


def locked_packages(lock: bytes) -> Mapping[str, str]:
    """Returns the version of each package from a lock's lines `name==version`."""
    versions: dict[str, str] = {}
    for line in lock.decode(errors="replace").splitlines():
        name, pinned, version = line.partition("==")
        if pinned and not line.startswith(("#", " ", "-")):
            versions[name.split("[")[0].strip()] = version.split(";")[0].split("\\")[0].strip()
    return versions


@contextmanager
def _lock_file(file: Path, lock_mode: int) -> Iterator[int]:
    make_folder(file.parent)
    descriptor = open_file(file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, lock_mode)
        yield descriptor
    finally:
        os.close(descriptor)


def _shared_interpreter(base: str) -> str | None:
    """Returns the program of an interpreter if runs cannot have created or changed it, otherwise None."""
    program = os.path.realpath(base)
    if program == os.path.realpath(sys.executable):
        return program
    paths = [program, *map(str, Path(program).parents)]
    if os.geteuid() != 0 and all(
        os.stat(path).st_uid == 0 and not os.access(path, os.W_OK) for path in paths
    ):
        return program
    return None


def _find_python(version: str) -> str:
    """Returns an interpreter of this version; our own if it matches or no version is requested."""
    if not version or f"{platform.python_version()}.".startswith(f"{version}."):
        return sys.executable
    argv = ["python", "find", "--no-project", "--no-cache", version]

    def run(command: Sequence[str], *, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
        with_pyenv = {**env, "PATH": interpreter_path(env)}
        return subprocess.run(command, env=with_pyenv, capture_output=True, check=False)

    return run_uv(run, argv, activity=f"Python {version} is not on this node").decode().strip()


def interpreter_path(env: Mapping[str, str]) -> str:
    """Returns PATH with the interpreters of pyenv, newest first, in place of its shims. A shim of a version
    that is not active fails, and uv then ends its search."""
    root = Path(env.get("PYENV_ROOT") or Path.home() / ".pyenv")
    matches = [(_RELEASE.fullmatch(folder.parent.name), folder) for folder in root.glob("versions/*/bin")]
    releases = [(tuple(map(int, found.groups())), str(folder)) for found, folder in matches if found]
    folders = [folder for _release, folder in sorted(releases, reverse=True)]
    path = env.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        each for entry in path for each in (folders if entry == str(root / "shims") else [entry])
    )
