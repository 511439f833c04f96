"""Starting the user's process: fork, put everything in place, exec.
What fails is told by a sentence, never by a silent 127."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.descriptor_limit import raise_descriptor_limit
from hopyard.private_files import open_file
from hopyard.replica.errors import NodeFault, PrepareFailed, prepare_error
from hopyard.replica.mount_namespace import IsolationMode, MountView, apply_view, detect_isolation_mode

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
# What the child says before exec: J (could not join a group), with its place, or V (no view of the home), W
# (no working folder) or E (could not exec), with errno.
_EXEC_ERROR = struct.Struct("<ci")
_NODE_ERRNOS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE})
# when the whole node runs out, the user's process goes before the server and its neighbours' replicas
_OOM_SCORE = b"300"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start. `argv[0]` is looked up in PATH of `env`, relative to `cwd`. groups: cgroup folders to
    join. view: what it sees of the home, where the kernel lets us see to that. namespace: as of
    `mounts.enter`."""

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


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """failed_cgroups: the cgroups that the kernel did not let it join (it runs all the same); it is in all
    others."""

    pid: int
    failed_cgroups: frozenset[Path]


def become_subreaper() -> None:
    """Orphans of the user's process become our children instead of init's, so that nothing escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_program(name: str, env: Mapping[str, str], cwd: Path) -> str:
    """The file that a command's first word stands for.
    Raises PrepareFailed with the shell's code 127 or 126."""
    if "/" in name:
        path = cwd / name
        if path.is_dir() or (path.exists() and not os.access(path, os.X_OK)):
            raise PrepareFailed(f"`{name}` is not executable", code=126)
        if not path.exists():
            raise PrepareFailed(f"there is no `{name}` in the run's code", code=127)
        return str(path)
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        raise PrepareFailed(f"command not found: `{name}` is not on PATH", code=127)
    return found


def start_process(command: ProcessSpec) -> StartedProcess:
    """Fork and exec. Returns when the program has been exec'ed. Raises PrepareFailed when it could not be."""
    program = find_program(command.argv[0], command.env, command.cwd)
    argv = [os.fsencode(word) for word in command.argv]
    env = {os.fsencode(k): os.fsencode(v) for k, v in command.env.items()}
    groups = [os.fsencode(group / "cgroup.procs") for group in command.groups]
    protection = detect_isolation_mode() if command.view is not None else IsolationMode.MODES
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    out = _open_stream(command.stdout)
    err = _open_stream(command.stderr)
    told, tell = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _exec(
                os.fsencode(program),
                argv,
                env,
                os.fsencode(command.cwd),
                (null, out, err),
                tell,
                groups,
                command.cpus,
                command.umask,
                parent,
                command.view or MountView(),
                protection,
                command.namespace,
            )
    except OSError as failed:
        os.close(told)
        raise prepare_error(failed, "the process could not be started") from failed
    finally:
        for descriptor in (null, out, err, tell):
            os.close(descriptor)
    refused: set[Path] = set()
    with os.fdopen(told, "rb") as words:
        while word := words.read(_EXEC_ERROR.size):
            kind, number = _EXEC_ERROR.unpack(word)
            if kind == b"J":
                refused.add(command.groups[number])
            else:
                os.waitpid(pid, 0)
                if kind == b"V":
                    raise NodeFault(f"cannot create private mounts for the process: {os.strerror(number)}")
                if kind == b"W":
                    raise NodeFault(
                        f"the run's folder {command.cwd} cannot be entered: {os.strerror(number)}"
                    )
                raise _exec_failure(command.argv[0], program, number)
    return StartedProcess(pid, frozenset(refused))


def _open_stream(path: Path) -> int:
    return open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _exec_failure(word: str, program: str, number: int) -> PrepareFailed:
    if number == errno.ENOENT and not os.path.exists(program):  # it was there when it was looked up
        return NodeFault(f"`{program}` vanished before it was started")
    # the file is there, so what is missing is the interpreter that its first line names
    if number == errno.ENOENT:
        return PrepareFailed(f"`{word}` names an interpreter in its first line, which does not exist", 127)
    if number == errno.ENOEXEC:
        return PrepareFailed(
            f"`{word}` is no program that this machine can run; a script begins with a line such as "
            "`#!/bin/sh`",
            126,
        )
    if number in _NODE_ERRNOS:
        return NodeFault(f"`{program}` could not be started: {os.strerror(number)}")
    return PrepareFailed(f"`{program}` could not be started: {os.strerror(number)}", 126)


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
) -> None:
    """In the child, until exec. Only plain system calls: other threads of the parent are gone in the middle
    of what they did."""
    try:
        os.setsid()
        for at, group in enumerate(groups):
            try:
                _write(group, b"0")
            except OSError:
                os.write(error_pipe, _EXEC_ERROR.pack(b"J", at))
        if cpus:
            try:
                os.sched_setaffinity(0, cpus)
            except OSError:
                pass  # a core that was taken offline meanwhile
        try:
            _write(b"/proc/self/oom_score_adj", _OOM_SCORE)
        except OSError:
            pass
        try:
            apply_view(view, isolation_mode, namespace)
        except OSError as failed:
            os.write(error_pipe, _EXEC_ERROR.pack(b"V", failed.errno or 0))
            os._exit(127)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of credentials would take it back
        if os.getppid() != parent:
            os._exit(1)  # the replica died before the kernel knew that we go with it
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
        except OSError as failed:
            os.write(error_pipe, _EXEC_ERROR.pack(b"W", failed.errno or 0))
            os._exit(127)
        os.execve(program, argv, env)
    except OSError as failed:
        os.write(error_pipe, _EXEC_ERROR.pack(b"E", failed.errno or 0))
    finally:
        os._exit(127)


def _write(path: bytes, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _set_rlimits() -> None:
    """No core dumps of tens of gigabytes, and descriptors enough for data loaders."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    raise_descriptor_limit()
