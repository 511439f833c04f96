"""The Python that runs the script: the caller's interpreter, or an environment built once per lock and shared
by all runs of a node.

A requirements file is resolved once per (its digest, Python version, platform); the lock's content, with
Python and platform, is the key of the environment. Resolving, installing and unpacking are uv's work.

Code of a user runs while that happens: `setup.py` of a package without a wheel, an interpreter of the user's
own. So such environments, what is resolved, and the cache of uv that they are made with, are the user's
alone, and uv gets a view of the home (`replica.mount_namespace`) in which it can write to nothing else. All
users share environments that are made of wheels by an interpreter of this machine, with another cache of uv,
which no code of theirs ever writes to.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from blake3 import blake3

from hopyard.datasets.fingerprint import fingerprint
from hopyard.datasets.tree_cache import remove_tree
from hopyard.domain.ids import Digest
from hopyard.domain.run import Environment
from hopyard.domain.urls import collect_credentials, insert_credentials, strip_credentials
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.replica.errors import NodeFault, PrepareFailed, UntrustedIndex
from hopyard.replica.mount_namespace import MountView, apply_view, detect_isolation_mode

# Files of its own, none that uv's cache and other environments have, too.
_UV_COPY_OPTIONS = ("--link-mode", "copy")
MAX_ENVIRONMENTS = (
    16  # environments beyond this many go, the least recently used first, unless a run uses them
)
MAX_CACHE_BYTES = 20 << 30  # a cache of uv beyond this is emptied, and so is one that was unused for so long:
MAX_CACHE_AGE_S = 30 * 86400
_SECRET = "HOPYARD_SECRET_"
_READY_FILE, _LOCKS_DIR = ".ready", "locks"
_ERROR_TAIL_LINES = 12
_LOCK_FORMAT = 2  # of what is kept of earlier resolutions
_NO_INDEX = re.compile(rb"^[ \t]*--no-index\b", re.MULTILINE)
_FIND_LINKS = re.compile(rb"^\s*(?:-f|--find-links)(?:\s+|=)(\S+)", re.MULTILINE)
# Settings with addresses: the option of requirements for one of them, and what separates several (None: white
# space).
_INDEX_SETTINGS: Mapping[str, tuple[str, str | None]] = {
    "UV_INDEX": ("--extra-index-url", None),
    "UV_EXTRA_INDEX_URL": ("--extra-index-url", None),
    "UV_DEFAULT_INDEX": ("--extra-index-url", None),
    "UV_INDEX_URL": ("--extra-index-url", None),
    "UV_FIND_LINKS": ("--find-links", ","),
}
_LABELLED = re.compile(r"^[\w.-]+=")  # an index with a name: `lab=https://…`
_HOST = re.compile(r"https?://[^/\s]+", re.IGNORECASE)
_PRIVATE = re.compile(r".*_(TOKEN|PASSWORD|USERNAME|SECRET|KEY)")
_UV_NAME_TO_PIP_NAME = {
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
}


@dataclass(frozen=True, slots=True)
class PythonInterpreter:
    """path: absolute, not resolved (a virtual environment is known by the path of its link). virtual_env: set
    for one that was built. lock: the pinned requirements as bytes, None where nothing was asked for.
    resolved: the lock was not given by the spec."""

    path: str
    virtual_env: Path | None = None
    lock: bytes | None = None
    resolved: bool = False


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of one node, below `root`. fetch: the bytes of a blob. log: what is being done now,
    for people. record_cache_key: told what is in place now: the digest of what was asked for, and a file that
    is there as long as it is. record_note: for the run's log. secrets: for `${NAME}` in addresses of the
    requirements. user: of the run. view: what uv, and the programs that it starts, see of the home; None is
    all."""

    root: Path
    fetch: Callable[[Digest], bytes]
    log: Callable[[str], None]
    record_cache_key: Callable[[Digest, Path], None] = lambda _digest, _path: None
    record_note: Callable[[str], None] = lambda _text: None
    secrets: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    view: MountView | None = None

    def prepare(self, environment_spec: Environment, stack: ExitStack, *, cwd: Path) -> PythonInterpreter:
        """The interpreter for this spec, building what is missing. In use until `stack` closes.
        Raises PrepareFailed.

        cwd: what relative paths in a requirements file are relative to.
        """
        base = environment_spec.interpreter or _find_python(environment_spec.python)
        if not os.access(base, os.X_OK):
            raise PrepareFailed(f"the interpreter {base} is not on this node")
        if environment_spec.requirements is None and environment_spec.lock is None:
            return PythonInterpreter(base)
        common = _shared_interpreter(base)
        base = common or base
        version, kind = self._version_and_platform(base)
        resolved = environment_spec.lock is None
        if environment_spec.lock is not None:
            lock = self.fetch(environment_spec.lock)
        else:
            assert environment_spec.requirements is not None
            lock = self._resolve(environment_spec.requirements, base, version, kind, cwd)
        # of one that an older replica made
        lock = strip_credentials(lock.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        links = _local_links(lock)
        key = blake3(lock + f"\n{version}\n{kind}".encode() + _link_folder_digest(links, cwd)).hexdigest()[
            :32
        ]
        folder = (
            self._use_shared(self.root / key, lock, base, stack, environment_spec.requirements)
            if common and not links
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
                cwd=cwd if links else None,
            )
        for digest in (environment_spec.requirements, Digest(blake3(lock).hexdigest())):
            if digest is not None:
                self.record_cache_key(digest, folder / _READY_FILE)
        return PythonInterpreter(str(folder / "bin" / "python"), folder, lock, resolved)

    def _resolve(self, requirements: Digest, base: str, version: str, kind: str, cwd: Path) -> bytes:
        name = blake3(
            f"{_LOCK_FORMAT}\n{requirements}\n{version}\n{kind}\n{self.user}\n{base}".encode(
                errors="surrogateescape"
            )
        ).hexdigest()[:32]
        known = self.root / _LOCKS_DIR / f"{name}.txt"
        # what lies in a folder may be another version now
        if known.exists() and not _local_links(known.read_bytes()):
            return known.read_bytes()
        make_folder(known.parent)
        text = self.fetch(requirements)
        with _lock_file(known.with_suffix(".lock"), fcntl.LOCK_EX) as held:
            if not known.exists() or _local_links(known.read_bytes()):
                self.log("resolving requirements")
                # the node's own are at hand again at the installation
                links = ("--emit-find-links",) if _FIND_LINKS.search(text) else ()
                argv = [
                    "pip",
                    "compile",
                    "-",
                    "--no-header",
                    "--no-annotate",
                    "--emit-index-url",
                    *links,
                    "-q",
                    "--python",
                    base,
                ]
                resolved = self._uv(
                    argv,
                    held,
                    cwd=cwd,
                    extra_env=text,
                    activity="the requirements cannot be met",
                    is_own=True,
                )
                # it is kept with the run, for everybody to read
                lock = strip_credentials(resolved.decode(errors="surrogateescape"))
                _reject_local_requirements(lock)
                # uv emits it with no option: without it, the packages would be asked for at the usual index
                if _NO_INDEX.search(text):
                    lock = f"--no-index\n{lock}"
                write_atomically(known, lock.encode(errors="surrogateescape"))
        return known.read_bytes()

    def _use_shared(
        self, folder: Path, lock: bytes, python: str, stack: ExitStack, requested_version: Digest | None
    ) -> Path | None:
        """The environment that all users share; None where something of it has no wheel."""
        none = folder.with_name(f"{folder.name}.unshared")
        if none.exists():
            return None
        try:
            self._use(folder, lock, python, stack, requested_version=requested_version, is_own=False)
        except NodeFault:
            raise
        except PrepareFailed:
            remove_tree(folder)
            write_atomically(none, b"")
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
        """Have it built and in use; again from the start where another run evicted it in between.
        cwd: what relative paths in the lock are relative to."""
        while True:
            self._build(folder, lock, python, requested_version, is_own, cwd)
            with ExitStack() as using:
                using.enter_context(_lock_file(folder.with_name(f"{folder.name}.use"), fcntl.LOCK_SH))
                if (folder / _READY_FILE).exists():
                    os.utime(folder / _READY_FILE)
                    stack.enter_context(using.pop_all())
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
        with _lock_file(folder.with_name(f"{folder.name}.lock"), fcntl.LOCK_EX) as held:
            if is_complete(folder):
                return  # another run built it while we waited
            if (folder / _READY_FILE).exists() and _fingerprint(folder).exists():
                self.record_note(f"environment {folder.name[:8]} was changed on this node: building it again")
            self.log(f"building environment {folder.name[:8]}")
            remove_tree(folder)  # also what a build that was killed left
            make_folder(folder)
            argv = ["venv", "-q", "--allow-existing", "--python", python, str(folder)]
            self._uv(argv, held, activity="cannot create an environment", is_own=is_own, into=folder)
            no_code = () if is_own else ("--no-build",)
            argv = [
                "pip",
                "sync",
                "-q",
                *_UV_COPY_OPTIONS,
                *no_code,
                "--allow-empty-requirements",
                "--python",
                str(folder / "bin" / "python"),
                "-",
            ]
            given = self._add_credentials(lock, requested_version)
            self._uv(
                argv,
                held,
                extra_env=given,
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
        """The lock as uv gets it: with user names and passwords of this machine's settings, and of the file
        that it was made of."""
        texts = list(_index_settings().values())
        if requested_version is not None and b"://" in lock:
            texts.append(self.fetch(requested_version).decode(errors="replace"))
        known = collect_credentials(texts)
        return (
            insert_credentials(lock.decode(errors="surrogateescape"), known).encode(errors="surrogateescape")
            if known
            else lock
        )

    def _compile(self, python: str, folder: Path) -> None:
        """Since Python cannot write beside the files later. Without `site`: a `.pth` file of a package would
        run its code. Files that cannot be compiled, such as templates, stay as they are."""
        self._run(
            [python, "-I", "-S", "-m", "compileall", "-q", "-j", "0", str(folder / "lib")], writable=[folder]
        )

    def _version_and_platform(self, base: str) -> tuple[str, str]:
        """The Python version and the platform of an interpreter; of our own without starting one."""
        if os.path.realpath(base) == os.path.realpath(sys.executable):
            return platform.python_version(), sysconfig.get_platform()
        code = "import platform,sysconfig;print(platform.python_version(),sysconfig.get_platform())"
        try:
            done = self._run([base, "-I", "-c", code])
            done.check_returncode()
            said = done.stdout.split()
            return said[0].decode(), said[1].decode()
        except (OSError, subprocess.CalledProcessError, IndexError) as failed:
            raise PrepareFailed(f"the interpreter {base} does not work: {failed}") from failed

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
        """Run uv; its output. `lock_descriptor`: a lock's descriptor that uv keeps, too, so that it outlives
        us if we are killed beside it."""
        caches = self.root.parent / "uv"
        name = f"users/{self.user}" if is_own else "common"
        kept = caches / name
        writable = [folder for folder in (kept, into) if folder is not None]
        # Under names of their own: a secret such as UV_INDEX, or LD_PRELOAD, is the run's, and not for the
        # program that builds for all users.
        names = {f"${{{name}}}".encode(): f"${{{_SECRET}{name}}}".encode() for name in self.secrets}
        for plain, own in names.items():
            extra_env = extra_env.replace(plain, own)
        secrets = {_SECRET + name: value for name, value in self.secrets.items()}
        settings = _index_settings()
        if is_own:
            settings, private = split_passwords(settings)
            if extra_env:
                extra_env = b"\n".join(
                    [extra_env, *(line.encode(errors="surrogateescape") for line in private)]
                )
        with _lock_file(caches / _LOCKS_DIR / name, fcntl.LOCK_SH) as using:
            os.utime(using)
            make_folder(kept)
            run = partial(
                self._run,
                lock_descriptor=[using] if lock_descriptor is None else [using, lock_descriptor],
                extra_env=extra_env,
                cwd=cwd,
                writable=writable,
            )
            said = _run_uv(
                run,
                argv,
                activity=activity,
                extra_env=extra_env,
                cache=kept,
                settings=settings,
                secrets=secrets,
            )
        for plain, own in names.items():
            said = said.replace(own, plain)
        return said

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
        protection = detect_isolation_mode()
        try:
            return subprocess.run(
                argv,
                input=extra_env,
                capture_output=True,
                check=False,
                env=env,
                cwd=cwd,
                pass_fds=lock_descriptor,
                preexec_fn=None if view is None else partial(apply_view, view, protection),
            )
        except subprocess.SubprocessError as failed:
            raise NodeFault(f"cannot create private mounts for a program: {failed}") from failed

    def _evict(self) -> None:
        """Remove environments that nobody uses, the least recently used first, until `MAX_ENVIRONMENTS` are
        left."""
        ready: list[tuple[float, Path]] = []
        for marker in self.root.glob(f"*/{_READY_FILE}"):
            with suppress(FileNotFoundError):  # another run evicts, too
                ready.append((marker.stat().st_mtime, marker.parent))
        now = fcntl.LOCK_EX | fcntl.LOCK_NB
        for _, folder in sorted(ready)[: max(0, len(ready) - MAX_ENVIRONMENTS)]:
            with suppress(OSError):  # in use, or being built anew
                with (
                    _lock_file(folder.with_name(f"{folder.name}.lock"), now),
                    _lock_file(folder.with_name(f"{folder.name}.use"), now),
                ):
                    (folder / _READY_FILE).unlink()
                    remove_tree(folder)
                    _fingerprint(folder).unlink(missing_ok=True)

    def _trim_caches(self) -> None:
        """Remove caches of uv that are too large or long unused, and not in use now. uv fills them again."""
        caches = self.root.parent / "uv"
        locks = caches / _LOCKS_DIR
        for lock in (locks / "common", *locks.glob("users/*")):
            kept = caches / lock.relative_to(locks)
            with suppress(OSError):  # in use, or removed by another run
                is_old = lock.stat().st_mtime < time.time() - MAX_CACHE_AGE_S
                # Caches of other users were measured after their own builds.
                if is_old or (lock.name in ("common", self.user) and _disk_bytes(kept) > MAX_CACHE_BYTES):
                    with _lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                        remove_tree(kept)


def _disk_bytes(folder: Path) -> int:
    found = 0
    for above, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                found += os.lstat(os.path.join(above, name)).st_blocks * 512
    return found


def is_complete(folder: Path) -> bool:
    """Whether an environment was built, and is as it was then: packages that a run installed into it would be
    every other run's, too."""
    try:
        return (folder / _READY_FILE).exists() and _fingerprint(folder).read_bytes() == fingerprint(
            folder, excluded=_READY_FILE
        ).encode()
    except OSError:
        return False


def _fingerprint(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.seen")


def _make_read_only(folder: Path) -> None:
    """Take away the right to write, from all that is in it."""
    for above, _, files in os.walk(folder):
        for name in files if above == str(folder) else [*files, "."]:
            path = os.path.join(above, name)
            if name != _READY_FILE and not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & ~0o222)


def locked_packages(lock: bytes) -> Mapping[str, str]:
    """Name → version of a lock's lines `name==version`."""
    found: dict[str, str] = {}
    for line in lock.decode(errors="replace").splitlines():
        name, pinned, version = line.partition("==")
        if pinned and not line.startswith(("#", " ", "-")):
            found[name.split("[")[0].strip()] = version.split(";")[0].split("\\")[0].strip()
    return found


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
    """The program behind an interpreter, where runs cannot have made or changed it; None where they can."""
    program = os.path.realpath(base)
    if program == os.path.realpath(sys.executable):
        return program
    places = [program, *map(str, Path(program).parents)]
    if os.geteuid() != 0 and all(
        os.stat(place).st_uid == 0 and not os.access(place, os.W_OK) for place in places
    ):
        return program
    return None


def _find_python(version: str) -> str:
    """An interpreter of this version; our own when it is one, or none was asked for."""
    if not version or f"{platform.python_version()}.".startswith(f"{version}."):
        return sys.executable
    argv = ["python", "find", "--no-project", "--no-cache", version]

    def run(command: Sequence[str], *, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, env=env, capture_output=True, check=False)

    return _run_uv(run, argv, activity=f"Python {version} is not on this node").decode().strip()


def _local_links(lock: bytes) -> list[str]:
    """Folders that a lock takes packages from (`--find-links`)."""
    found = (os.fsdecode(link).removeprefix("file://") for link in _FIND_LINKS.findall(lock))
    return [link for link in found if "://" not in link]


def _link_folder_digest(links: Sequence[str], cwd: Path) -> bytes:
    """What lies in these folders: an environment made of other files is another one."""
    found = b""
    for link in links:
        with suppress(OSError):  # uv reports it
            for file in sorted(path for path in (cwd / link).iterdir() if path.is_file()):
                found += b"\n" + os.fsencode(file.name) + blake3(file.read_bytes()).digest()
    return found


def _reject_local_requirements(lock: str) -> None:
    for line in lock.splitlines():
        if _FIND_LINKS.search(os.fsencode(line)):
            continue
        if line.startswith(("-e", ".", "/")) or "file://" in line:
            raise PrepareFailed(
                f"the requirements install a local folder (`{line.strip()}`), which other runs cannot "
                "share; the code of the run is importable without it"
            )


def _run_uv(
    run: Callable[..., subprocess.CompletedProcess[bytes]],
    argv: Sequence[str],
    *,
    activity: str,
    extra_env: bytes = b"",
    cache: Path | None = None,
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """What uv prints. run: starts a program with an environment, which holds `secrets` and `settings`.
    cache: uv's. settings: None is all of this machine's. Raises PrepareFailed."""
    import uv  # late: only runs with requirements need it

    everything = _index_settings()
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("UV_", "PIP_")) and k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    }
    env |= dict(everything if settings is None else settings) | dict(secrets)
    if cache is not None:
        env["UV_CACHE_DIR"] = str(cache)
    try:
        done = run([uv.find_uv_bin(), *argv], env=env)
    except (OSError, FileNotFoundError) as failed:
        raise NodeFault(f"{activity}: uv could not be started: {failed}") from failed
    if done.returncode:
        said = [line.rstrip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        words = _redact(
            "\n".join(said[-_ERROR_TAIL_LINES:]),
            [*env.values(), *everything.values(), extra_env.decode(errors="replace")],
            secrets.values(),
        ).removeprefix("error: ")
        reason = f"{activity}: " + (words.replace("in `-` at", "in the file at") if extra_env else words)
        raise uv_error(done.returncode, reason)
    return done.stdout


# As uv tells of system calls that failed, and of an index that could not be reached.
_NODE_ERROR_PATTERN = re.compile(
    r"No space left on device|Too many open files|Cannot allocate memory|Resource temporarily "
    r"unavailable|Input/output error|Read-only file system"
    r"|Disk quota exceeded|Stale file handle|dns error|[Cc]onnection (refused|reset|timed out)|operation "
    r"timed out|error sending request|[Nn]etwork is unreachable"
)

# As uv, and the TLS library in it, tell of a server without a certificate, or a protocol, that this node
# accepts. uv calls that a request that could not be sent, too.
_TLS_ERROR_PATTERN = re.compile(
    r"invalid peer certificate|received fatal alert|received corrupt message of type|peer is "
    r"incompatible|peer misbehaved"
)


def uv_error(code: int, reason: str) -> PrepareFailed:
    """Why uv failed: for a reason of this node or its network, of a package index, or of the requirements.
    code: negative where uv was killed."""
    if code >= 0 and _TLS_ERROR_PATTERN.search(reason):
        return UntrustedIndex(reason)
    return NodeFault(reason) if code < 0 or _NODE_ERROR_PATTERN.search(reason) else PrepareFailed(reason)


def _redact(text: str, redacted_values: Iterable[str], secrets: Iterable[str]) -> str:
    """What uv said, without the user names and passwords of package indexes: everybody may read why a run
    failed."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    text = strip_credentials(text)
    for userinfo in collect_credentials(redacted_values).values():
        for part in (userinfo, userinfo.partition(":")[2]):
            text = text.replace(part, "***") if part else text
    return text


def _index_settings() -> dict[str, str]:
    """This machine's settings of uv, and those of pip under uv's names."""
    env = {
        name: value for name, value in os.environ.items() if name.startswith("UV_") and name != "UV_PYTHON"
    }
    for ours, theirs in _UV_NAME_TO_PIP_NAME.items():
        given = os.environ.get(theirs)
        if ours not in env and given:
            # pip separates by white space, uv find-links by commas and indexes by white space
            env[ours] = given.replace(" ", ",") if ours == "UV_FIND_LINKS" else given
    return env


def split_passwords(settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Settings of uv without passwords, for its environment, which code of packages inherits; and lines of
    requirements with the addresses that have one. uv reads these from its input, where nothing of them is
    left for such code, and uses a password for all of a host."""
    lines: list[str] = []
    for name, (option, separator) in _INDEX_SETTINGS.items():
        for word in settings.get(name, "").split(separator):
            label, named, address = word.partition("=") if _LABELLED.search(word) else ("", "", word)
            if named and strip_credentials(address) == address:
                of_index = "UV_INDEX_" + re.sub(r"\W", "_", label).upper()
                user, password = (
                    quote(settings.get(f"{of_index}_{what}", ""), safe="")
                    for what in ("USERNAME", "PASSWORD")
                )
                if user or password:
                    address = insert_credentials(
                        address, dict.fromkeys(_HOST.findall(address), f"{user}:{password}")
                    )
            if strip_credentials(address) != address:
                lines.append(f"{option} {address}")
    return {
        name: strip_credentials(value) for name, value in settings.items() if not _PRIVATE.fullmatch(name)
    }, lines
