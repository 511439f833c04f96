"""Process trees as the kernel tells them: who descends from whom, what they use, and ending them.
Linux's /proc, read directly.

(psutil does the same with an object per process; the watcher runs up to fifty times a second beside the
user's code.)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import is_transient
from hopyard.replica.replica_log import log

_PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRONMENT_MARKER = b"HOPYARD_REPLICA_DIR="
_POLL_INTERVAL_S = 0.05
_START_TIME_FIELD = 19  # which of the fields from the state on is the last one that matters


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that matter here. Times in clock ticks; cpu includes children that were
    waited for."""

    pid: int
    state: str
    parent: int
    session: int
    cpu: int
    started: int


def read_stat(pid: int) -> ProcessStat | None:
    """None when there is no such process. A zombie (state Z) still has one."""
    fields = _fields(pid)
    return None if fields is None else _stat(pid, fields)


def _fields(pid: int | str) -> list[bytes] | None:
    """Of /proc/PID/stat, from the state on. Without a file object, which takes longer than all else here."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(file, 4096)
        finally:
            os.close(file)
    except OSError:
        return None
    return data[data.rindex(b")") + 2 :].split(None, _START_TIME_FIELD + 1)


def _stat(pid: int, fields: Sequence[bytes]) -> ProcessStat:
    return ProcessStat(
        pid,
        fields[0].decode(),
        int(fields[1]),
        int(fields[3]),
        sum(map(int, fields[11:15])),
        int(fields[_START_TIME_FIELD]),
    )


def all_stats() -> list[ProcessStat]:
    found = (read_stat(int(name)) for name in _list_pids())
    return [stat for stat in found if stat is not None]


def _list_pids() -> list[str]:
    """Of all processes. Waited for where there are no descriptors: none that is to end may be overlooked."""
    told = False
    while True:
        try:
            return [name for name in os.listdir("/proc") if name.isdecimal()]
        except OSError as failed:
            if not is_transient(failed):
                raise
            if not told:
                log(f"cannot list processes: {failed}")
            told = True
            time.sleep(_POLL_INTERVAL_S)


def descendants(root: int) -> list[ProcessStat]:
    """Every living process below `root`, without it. Zombies are dead."""
    children: dict[bytes, list[tuple[str, list[bytes]]]] = {}
    for name in _list_pids():
        if (fields := _fields(name)) is not None:
            children.setdefault(fields[1], []).append((name, fields))
    found: list[ProcessStat] = []
    todo = [b"%d" % root]
    while todo:
        for name, fields in children.pop(todo.pop(), []):
            todo.append(name.encode())
            if fields[0] not in b"ZX":
                found.append(_stat(int(name), fields))
    return found


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes together, quickly, never less than the truth by much: what is shared in files
    or shared memory is counted once, pages that forks still have in common several times."""
    private, shared = 0, 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                fields = file.read().split()
        except OSError:
            continue
        common = int(fields[2])
        private += int(fields[1]) - common
        shared = max(shared, common)
    return (private + shared) * _PAGE


def proportional_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes together, exactly (PSS); a millisecond per gigabyte and process."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                for line in file:
                    if line.startswith(b"Pss:"):
                        total += int(line.split()[1]) * 1024
                        break
        except OSError:
            total += resident_bytes((pid,))  # another user's process: what can be known of it
    return total


def kill_processes(pids: Iterable[int]) -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def kill_descendants(root: int, *, timeout_s: float = 5.0) -> int:
    """End everything below `root` (which must be the subreaper of it) and reap it; how many were ended.

    Repeated until nothing is left, because a process may fork while we look.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        pids = [stat.pid for stat in descendants(root)]
        kill_processes(pids)
        ended.update(pids)
        time.sleep(0.002)
    return len(ended)


def find_leftover_processes(folder: Path, session: int, session_started: int) -> Collection[int]:
    """Processes that an earlier replica's user left: those that carry its folder in their environment, and
    those of the session that it opened. `session_started` distinguishes that session from a later one of the
    same number. Those of a replica in another folder, of which this one is a copy, are left alone."""
    stats = [stat for stat in all_stats() if stat.state not in "ZX" and stat.pid != os.getpid()]
    members = [stat.pid for stat in stats if session > 0 and stat.session == session]
    leader = next((stat for stat in stats if stat.pid == session), None)
    session_is_ours = (leader is None or leader.started == session_started) and not belong_to_other_replica(
        members, folder
    )
    found = set(members if session_is_ours else ())
    for stat in stats:
        if _belongs_to(stat.pid, folder):
            found.add(stat.pid)
    return found


def belong_to_other_replica(pids: Collection[int], folder: Path) -> bool:
    """Whether the processes of a session or group belong to a replica in another folder than this one: some
    of them do, and none to this one."""
    return any(_belongs_to_other_replica(pid, folder) for pid in pids) and not any(
        _belongs_to(pid, folder) for pid in pids
    )


def _belongs_to(pid: int, folder: Path) -> bool:
    named = _folder_of(pid)
    return (
        named is not None
        and (named == folder or is_same_file(named, folder))
        and not _belongs_to_other_replica(pid, folder)
    )


def _belongs_to_other_replica(pid: int, folder: Path) -> bool:
    """Whether a process belongs to a replica in another folder than this one, by where it works or else by
    its environment."""
    try:
        works = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False  # gone, or another user's
    if works.parts[-4:] == (*folder.parts[-3:], "work"):
        return not is_same_file(Path(f"/proc/{pid}/cwd"), folder / "work")
    named = _folder_of(pid)
    return named is not None and not is_missing(named) and not is_same_file(named, folder)


def _folder_of(pid: int) -> Path | None:
    """The replica's folder that a process carries in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None  # not ours to read, so not ours to end
    found = next((word for word in environment.split(b"\0") if word.startswith(_ENVIRONMENT_MARKER)), None)
    return None if found is None else Path(os.fsdecode(found.removeprefix(_ENVIRONMENT_MARKER)))


def is_missing(path: Path) -> bool:
    """Whether there is certainly no such file; what may not be looked at is there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def is_same_file(path: Path, other: Path) -> bool:
    """Whether both are one file, by device and inode."""
    try:
        return path.samefile(other)
    except OSError:
        return False
