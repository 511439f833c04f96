"""Starts the user's process: fork, set up its surroundings, exec. A failure is reported with a sentence,
never with a bare 127."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import shutil
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.descriptor_limit import raise_descriptor_limit
from hopyard.private_files import create_below
from hopyard.replica.errors import NodeFault, PrepareFailed, prepare_error
from hopyard.replica.mount_namespace import IsolationMode, MountView, apply_view, detect_isolation_mode

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
# A message of the child before exec: T (now it begins) with the time, J (could not join a group) with the
# group's index, or V (no view of the home), W (no working folder) or E (could not exec) with errno.
_EXEC_MESSAGE = struct.Struct("<cd")
_NODE_ERRNOS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE})
# when the whole node is out of memory, the user's process is killed before the server and other replicas
_OOM_SCORE = b"300"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The process to start.

    `argv[0]` is looked up in PATH of `env`, relative to `cwd`. groups: cgroup folders to join. view: what it
    sees of the home, if the kernel allows it. namespace: as in `mount_namespace.apply_view`. outer_cwd: the
    path of `cwd` for this process, if it sees another view. standard: descriptors of the standard streams, in
    place of no input and the files `stdout` and `stderr`. has_terminal: whether they are a terminal, which
    then controls the process.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path
    cpus: Sequence[int] | None = None
    groups: Sequence[Path] = ()
    umask: int = 0o022
    view: MountView | None = None
    namespace: int | None = None
    outer_cwd: Path | None = None
    standard: tuple[int, int, int] | None = None
    has_terminal: bool = False


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """began_at: Unix seconds, of the exec. failed_cgroups: the cgroups that the kernel did not let it join;
    it runs nevertheless, and is in all others."""

    pid: int
    began_at: float
    failed_cgroups: frozenset[Path]


def become_subreaper() -> None:
    """Makes orphans of the user's process our children instead of init's, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_program(name: str, env: Mapping[str, str], cwd: Path) -> str:
    """Returns the file of a command's first word. Raises PrepareFailed with the shell's code 127 or 126."""
    if "/" in name:
        path = cwd / name
        if path.is_dir() or (path.exists() and not os.access(path, os.X_OK)):
            raise PrepareFailed(f"`{name}` is not executable", code=126)
        if not path.exists():
            raise PrepareFailed(f"there is no `{name}` in the run's code", code=127)
        return str(path)
    program = shutil.which(name, path=env.get("PATH", os.defpath))
    if program is None:
        raise PrepareFailed(f"command not found: `{name}` is not on PATH", code=127)
    return program


def start_process(command: ProcessSpec) -> StartedProcess:
    """Forks and executes the program. Returns after the exec. Raises PrepareFailed if it fails."""
    found = find_program(command.argv[0], command.env, command.outer_cwd or command.cwd)
    program = str(command.cwd / command.argv[0]) if "/" in command.argv[0] else found
    argv = [os.fsencode(message) for message in command.argv]
    env = {os.fsencode(k): os.fsencode(v) for k, v in command.env.items()}
    cgroup_files = [os.fsencode(group / "cgroup.procs") for group in command.groups]
    isolation_mode = detect_isolation_mode() if command.view is not None else IsolationMode.MODES
    opened = [] if command.standard is not None else _open_standard(command)
    standard = command.standard or (opened[0], opened[1], opened[2])
    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _exec(
                os.fsencode(program),
                argv,
                env,
                os.fsencode(command.cwd),
                standard,
                error_write,
                cgroup_files,
                command.cpus,
                command.umask,
                parent,
                command.view or MountView(),
                isolation_mode,
                command.namespace,
                command.has_terminal,
            )
    except OSError as error:
        os.close(error_read)
        raise prepare_error(error, "the process could not be started") from error
    finally:
        for descriptor in (*opened, error_write):
            os.close(descriptor)
    failed_cgroups: set[Path] = set()
    began_at = 0.0
    with os.fdopen(error_read, "rb") as messages:
        while message := messages.read(_EXEC_MESSAGE.size):
            kind, value = _EXEC_MESSAGE.unpack(message)
            detail = int(value)
            if kind == b"T":
                began_at = value
            elif kind == b"J":
                failed_cgroups.add(command.groups[detail])
            else:
                with suppress(ChildProcessError):  # the supervisor reaped it
                    os.waitpid(pid, 0)
                if kind == b"V":
                    raise NodeFault(f"cannot create private mounts for the process: {os.strerror(detail)}")
                if kind == b"W":
                    raise NodeFault(
                        f"the run's folder {command.cwd} cannot be entered: {os.strerror(detail)}"
                    )
                raise _exec_failure(command.argv[0], found, detail)
    return StartedProcess(pid, began_at or time.time(), frozenset(failed_cgroups))


def _open_standard(command: ProcessSpec) -> list[int]:
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return [null, open_stream(command.stdout), open_stream(command.stderr)]


def open_stream(path: Path) -> int:
    """Opens a file of output to append to it. An earlier process may have replaced it by a link, or its
    folder. The output is lost then, and no other file gets it."""
    folder = path.parent
    try:
        descriptor = create_below(folder.parent, f"{folder.name}/{path.name}", os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)  # the process inherits the flags
    return descriptor


def _exec_failure(name: str, program: str, error_number: int) -> PrepareFailed:
    if error_number == errno.ENOENT and not os.path.exists(program):  # it existed when it was looked up
        return NodeFault(f"`{program}` vanished before it was started")
    # the file exists, so the interpreter in its first line is missing
    if error_number == errno.ENOENT:
        return PrepareFailed(f"`{name}` names an interpreter in its first line, which does not exist", 127)
    if error_number == errno.ENOEXEC:
        return PrepareFailed(
            f"`{name}` is not a program that this machine can run; a script begins with a line such as "
            "`#!/bin/sh`",
            126,
        )
    if error_number in _NODE_ERRNOS:
        return NodeFault(f"`{program}` could not be started: {os.strerror(error_number)}")
    return PrepareFailed(f"`{program}` could not be started: {os.strerror(error_number)}", 126)


def _exec(
    program: bytes,
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: bytes,
    standard: tuple[int, int, int],
    error_pipe: int,
    groups: list[bytes],
    cpus: Sequence[int] | None,
    umask: int,
    parent: int,
    view: MountView,
    isolation_mode: IsolationMode,
    namespace: int | None,
    has_terminal: bool,
) -> None:
    """Runs in the child until exec. Only plain system calls: the parent's other threads are gone and may have
    held locks."""
    try:
        os.setsid()
        if has_terminal:
            fcntl.ioctl(standard[0], termios.TIOCSCTTY, 0)
        for index, group in enumerate(groups):
            try:
                _write(group, b"0")
            except OSError:
                os.write(error_pipe, _EXEC_MESSAGE.pack(b"J", index))
        if cpus:
            try:
                os.sched_setaffinity(0, cpus)
            except OSError:
                pass  # a core that went offline meanwhile
        try:
            _write(b"/proc/self/oom_score_adj", _OOM_SCORE)
        except OSError:
            pass
        try:
            apply_view(view, isolation_mode, namespace)
        except OSError as error:
            os.write(error_pipe, _EXEC_MESSAGE.pack(b"V", error.errno or 0))
            os._exit(127)
        _prctl(
            _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
        )  # last, because a change of credentials would reset it
        if os.getppid() != parent:
            os._exit(1)  # the replica died before the death signal was set
        _set_rlimits()
        os.umask(umask)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGCHLD,
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGHUP,
        ):
            signal.signal(number, signal.SIG_DFL)
        for target, descriptor in enumerate(standard):
            os.dup2(descriptor, target)
        try:
            os.chdir(cwd)
        except OSError as error:
            os.write(error_pipe, _EXEC_MESSAGE.pack(b"W", error.errno or 0))
            os._exit(127)
        os.write(error_pipe, _EXEC_MESSAGE.pack(b"T", time.time()))
        os.execve(program, argv, env)
    except OSError as error:
        os.write(error_pipe, _EXEC_MESSAGE.pack(b"E", error.errno or 0))
    finally:
        os._exit(127)


def _write(path: bytes, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _set_rlimits() -> None:
    """Disables core dumps of tens of gigabytes, and allows enough descriptors for data loaders."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    raise_descriptor_limit()
