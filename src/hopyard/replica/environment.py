"""The Python that runs the script: the caller's interpreter, or an environment built once per lock and shared by all runs of a node.

A requirements file is resolved once per (its digest, Python version, platform); the lock's content, with Python and platform, is the
key of the environment. Resolving, installing and unpacking are uv's work.
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
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from hopyard.datasets.cache import remove_tree
from hopyard.datasets.fingerprint import fingerprint
from hopyard.domain.ids import Digest
from hopyard.domain.run import Environment
from hopyard.domain.urls import credentials, with_credentials, without_credentials
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.replica.failure import NodeFault, PrepareFailed

# Files of its own, none that uv's cache and other environments have, too; compiled, since Python cannot write beside them later.
_APART = ("--link-mode", "copy", "--compile-bytecode")
KEEP = 16  # environments beyond this many go, the least recently used first, unless a run uses them
_READY, _LOCKS = ".ready", "locks"
_TOLD_LINES = 12
_FROM_PIP = {"UV_FIND_LINKS": "PIP_FIND_LINKS", "UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_INDEX": "PIP_EXTRA_INDEX_URL"}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """path: absolute, not resolved (a virtual environment is known by the path of its link). virtual_env: set for one that was
    built. lock: the pinned requirements as bytes, None where nothing was asked for. resolved: the lock was not given by the spec."""

    path: str
    virtual_env: Path | None = None
    lock: bytes | None = None
    resolved: bool = False


@dataclass(frozen=True, slots=True)
class Environments:
    """The environments of one node, below `root`. fetch: the bytes of a blob. say: what is being done now, for people. hold: told
    what is in place now: the digest of what was asked for, and a file that is there as long as it is. note: for the run's log."""

    root: Path
    fetch: Callable[[Digest], bytes]
    say: Callable[[str], None]
    hold: Callable[[Digest, Path], None] = lambda _digest, _path: None
    note: Callable[[str], None] = lambda _text: None

    def ready(self, wanted: Environment, stack: ExitStack, *, cwd: Path) -> Interpreter:
        """The interpreter for this spec, building what is missing. In use until `stack` closes. Raises PrepareFailed.

        cwd: what relative paths in a requirements file are relative to.
        """
        base = wanted.interpreter or _find_python(wanted.python)
        if not os.access(base, os.X_OK):
            raise PrepareFailed(f"the interpreter {base} is not on this node")
        if wanted.requirements is None and wanted.lock is None:
            return Interpreter(base)
        version, kind = _describe(base)
        resolved = wanted.lock is None
        if wanted.lock is not None:
            lock = self.fetch(wanted.lock)
        else:
            assert wanted.requirements is not None
            lock = self._resolve(wanted.requirements, base, version, kind, cwd)
        lock = without_credentials(lock.decode(errors="surrogateescape")).encode(errors="surrogateescape")  # of one that an older replica made
        key = blake3(lock + f"\n{version}\n{kind}".encode()).hexdigest()[:32]
        folder = self.root / key
        self._use(folder, lock, base, stack, asked_for=wanted.requirements)
        for digest in (wanted.requirements, Digest(blake3(lock).hexdigest())):
            if digest is not None:
                self.hold(digest, folder / _READY)
        return Interpreter(str(folder / "bin" / "python"), folder, lock, resolved)

    def _resolve(self, requirements: Digest, base: str, version: str, kind: str, cwd: Path) -> bytes:
        name = blake3(f"{requirements}\n{version}\n{kind}".encode()).hexdigest()[:32]
        known = self.root / _LOCKS / f"{name}.txt"
        if known.exists():
            return known.read_bytes()
        make_folder(known.parent)
        text = self.fetch(requirements)
        with _held(known.with_suffix(".lock"), fcntl.LOCK_EX) as held:
            if not known.exists():
                self.say("resolving requirements")
                argv = ["pip", "compile", "-", "--no-header", "--no-annotate", "--emit-index-url", "-q", "--python", base]
                resolved = _uv(argv, held, cwd=cwd, given=text, doing="the requirements cannot be met")
                lock = without_credentials(resolved.decode(errors="surrogateescape"))  # it is kept with the run, for everybody to read
                _refuse_local(lock)
                write_atomically(known, lock.encode(errors="surrogateescape"))
        return known.read_bytes()

    def _use(self, folder: Path, lock: bytes, python: str, stack: ExitStack, *, asked_for: Digest | None) -> None:
        """Have it built and in use; again from the start where another run evicted it in between."""
        while True:
            self._build(folder, lock, python, asked_for)
            with ExitStack() as using:
                using.enter_context(_held(folder.with_name(f"{folder.name}.use"), fcntl.LOCK_SH))
                if (folder / _READY).exists():
                    os.utime(folder / _READY)
                    stack.enter_context(using.pop_all())
                    return

    def _build(self, folder: Path, lock: bytes, python: str, asked_for: Digest | None) -> None:
        if is_whole(folder):
            return
        make_folder(self.root)
        with _held(folder.with_name(f"{folder.name}.lock"), fcntl.LOCK_EX) as held:
            if is_whole(folder):
                return  # another run built it while we waited
            if (folder / _READY).exists() and _seen(folder).exists():
                self.note(f"environment {folder.name[:8]} had been changed on this node since it was built: it is built anew")
            self.say(f"building environment {folder.name[:8]}")
            remove_tree(folder)  # also what a build that was killed left
            _uv(["venv", "-q", "--python", python, str(folder)], held, doing="no environment can be made")
            target = folder / "bin" / "python"
            _uv(["pip", "sync", "-q", *_APART, "--allow-empty-requirements", "--python", str(target), "-"], held, given=self._with_credentials(lock, asked_for), doing="the requirements cannot be installed")
            write_atomically(folder / _READY, json.dumps({"built_at": time.time()}).encode())
            _protect(folder)
            write_atomically(_seen(folder), fingerprint(folder, without=_READY).encode())
        self._evict()

    def _with_credentials(self, lock: bytes, asked_for: Digest | None) -> bytes:
        """The lock as uv gets it: with user names and passwords of this machine's settings, and of the file that it was made of."""
        texts = list(_index_settings().values())
        if asked_for is not None and b"://" in lock:
            texts.append(self.fetch(asked_for).decode(errors="replace"))
        known = credentials(texts)
        return with_credentials(lock.decode(errors="surrogateescape"), known).encode(errors="surrogateescape") if known else lock

    def _evict(self) -> None:
        """Remove environments that nobody uses, the least recently used first, until `KEEP` are left."""
        ready: list[tuple[float, Path]] = []
        for marker in self.root.glob(f"*/{_READY}"):
            with suppress(FileNotFoundError):  # another run evicts, too
                ready.append((marker.stat().st_mtime, marker.parent))
        now = fcntl.LOCK_EX | fcntl.LOCK_NB
        for _, folder in sorted(ready)[: max(0, len(ready) - KEEP)]:
            with suppress(OSError):  # in use, or being built anew
                with _held(folder.with_name(f"{folder.name}.lock"), now), _held(folder.with_name(f"{folder.name}.use"), now):
                    (folder / _READY).unlink()
                    remove_tree(folder)
                    _seen(folder).unlink(missing_ok=True)


def is_whole(folder: Path) -> bool:
    """Whether an environment was built, and is as it was then: packages that a run installed into it would be every other run's, too."""
    try:
        return (folder / _READY).exists() and _seen(folder).read_bytes() == fingerprint(folder, without=_READY).encode()
    except OSError:
        return False


def _seen(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.seen")


def _protect(folder: Path) -> None:
    """Take away the right to write, from all that is in it."""
    for above, _, files in os.walk(folder):
        for name in files if above == str(folder) else [*files, "."]:
            path = os.path.join(above, name)
            if name != _READY and not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & ~0o222)


def packages_of(lock: bytes) -> Mapping[str, str]:
    """Name → version of a lock's lines `name==version`."""
    found: dict[str, str] = {}
    for line in lock.decode(errors="replace").splitlines():
        name, pinned, version = line.partition("==")
        if pinned and not line.startswith(("#", " ", "-")):
            found[name.split("[")[0].strip()] = version.split(";")[0].split("\\")[0].strip()
    return found


@contextmanager
def _held(file: Path, how: int) -> Iterator[int]:
    make_folder(file.parent)
    descriptor = open_file(file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, how)
        yield descriptor
    finally:
        os.close(descriptor)


def _find_python(version: str) -> str:
    """An interpreter of this version; our own when it is one, or none was asked for."""
    if not version or f"{platform.python_version()}.".startswith(f"{version}."):
        return sys.executable
    return _uv(["python", "find", "--no-project", version], None, doing=f"Python {version} is not on this node").decode().strip()


def _describe(base: str) -> tuple[str, str]:
    """The Python version and the platform of an interpreter; of our own without starting one."""
    if base == sys.executable:
        return platform.python_version(), sysconfig.get_platform()
    code = "import platform,sysconfig;print(platform.python_version(),sysconfig.get_platform())"
    try:
        said = subprocess.run([base, "-I", "-c", code], capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout.split()
        return said[0].decode(), said[1].decode()
    except (OSError, subprocess.CalledProcessError, IndexError) as failed:
        raise PrepareFailed(f"the interpreter {base} does not work: {failed}") from failed


def _refuse_local(lock: str) -> None:
    for line in lock.splitlines():
        if line.startswith(("-e", ".", "/")) or "file://" in line:
            raise PrepareFailed(
                f"the requirements install a local folder (`{line.strip()}`), which no other run could share; the run's own code is on the path without it"
            )


def _uv(argv: Sequence[str], held: int | None, *, doing: str, given: bytes = b"", cwd: Path | None = None) -> bytes:
    """Run uv; its output. `held`: a lock's descriptor that uv keeps, too, so that it outlives us if we are killed beside it."""
    import uv  # late: only runs with requirements need it

    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PYTHON")} | _index_settings()
    try:
        done = subprocess.run(
            [uv.find_uv_bin(), *argv], input=given, capture_output=True, check=False, env=env, cwd=cwd, pass_fds=() if held is None else (held,)
        )
    except (OSError, FileNotFoundError) as failed:
        raise NodeFault(f"{doing}: uv could not be started: {failed}") from failed
    if done.returncode:
        said = [line.rstrip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        words = _hide("\n".join(said[-_TOLD_LINES:]), [*env.values(), given.decode(errors="replace")]).removeprefix("error: ")
        reason = f"{doing}: " + (words.replace("in `-` at", "in the file at") if given else words)
        raise NodeFault(reason) if _of_the_node(done.returncode, words) else PrepareFailed(reason)
    return done.stdout


# As uv tells of system calls that failed, and of an index that could not be reached.
_TROUBLE = re.compile(
    r"No space left on device|Too many open files|Cannot allocate memory|Resource temporarily unavailable|Input/output error|Read-only file system"
    r"|Disk quota exceeded|Stale file handle|dns error|[Cc]onnection (refused|reset|timed out)|operation timed out|error sending request|[Nn]etwork is unreachable"
)


def _of_the_node(code: int, words: str) -> bool:
    """Whether uv failed for a reason of this node or its network, and not of the requirements. code: negative where it was killed."""
    return code < 0 or _TROUBLE.search(words) is not None


def _hide(words: str, known: Iterable[str]) -> str:
    """What uv said, without the user names and passwords of package indexes: everybody may read why a run failed."""
    words = without_credentials(words)
    for userinfo in credentials(known).values():
        for part in (userinfo, userinfo.partition(":")[2]):
            words = words.replace(part, "***") if part else words
    return words


def _index_settings() -> dict[str, str]:
    """This machine's settings of uv, and those of pip under uv's names."""
    env = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    for ours, theirs in _FROM_PIP.items():
        given = os.environ.get(theirs)
        if ours not in env and given:
            # pip separates by white space, uv find-links by commas and indexes by white space
            env[ours] = given.replace(" ", ",") if ours == "UV_FIND_LINKS" else given
    return env
