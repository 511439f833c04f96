"""Process trees from Linux's /proc: descendants, resource usage, and ending them.

(psutil does the same with an object per process; this code runs up to fifty times a second beside the user's
code.)
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.home import RUN_PLACES_DIR
from hopyard.errors import is_transient
from hopyard.replica.replica_log import log

_PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRONMENT_MARKER = b"HOPYARD_REPLICA_DIR="
_POLL_INTERVAL_S = 0.05
_START_TIME_FIELD = 19  # index of the last used field, counted from the state


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The used fields of /proc/PID/stat. Times are in clock ticks; cpu includes children that were waited
    for."""

    pid: int
    state: str
    parent: int
    session: int
    cpu: int
    started: int


def read_stat(pid: int) -> ProcessStat | None:
    """Returns None if there is no such process. A zombie (state Z) still has a stat."""
    fields = _fields(pid)
    return None if fields is None else _stat(pid, fields)


def _fields(pid: int | str) -> list[bytes] | None:
    """Returns the fields of /proc/PID/stat from the state on. It uses no file object, which would take most
    of the time."""
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


def disk_bytes(pids: Iterable[int]) -> tuple[int, int]:
    """Returns how many bytes these processes have read from disks and written to them, with their children
    that were waited for."""
    totals = {b"read_bytes": 0, b"write_bytes": 0}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb", buffering=0) as file:
                lines = file.read().splitlines()
        except OSError:  # it has ended, or became a process of another user
            continue
        for line in lines:
            name, _, value = line.partition(b": ")
            if name in totals:
                totals[name] += int(value)
    return totals[b"read_bytes"], totals[b"write_bytes"]


def all_stats() -> list[ProcessStat]:
    stats = (read_stat(int(name)) for name in _list_pids())
    return [stat for stat in stats if stat is not None]


def _list_pids() -> list[str]:
    """Returns the pids of all processes. Waits for free descriptors: no process to be ended may be missed."""
    logged = False
    while True:
        try:
            return [name for name in os.listdir("/proc") if name.isdecimal()]
        except OSError as error:
            if not is_transient(error):
                raise
            if not logged:
                log(f"cannot list processes: {error}")
            logged = True
            time.sleep(_POLL_INTERVAL_S)


# The first process of the container of this replica, with its start time. Its parent is the container engine.
_container_roots: dict[int, tuple[int, Path | None]] = {}


def add_container(pid: int, group: Path | None) -> None:
    """From now on a container's processes count as descendants of this process, until it ends. pid: of the
    first one. group: a control group with all of them, also those that `hop exec` started."""
    stat = read_stat(pid)
    if stat is not None:
        _container_roots[pid] = stat.started, group


def remove_container(pid: int) -> None:
    _container_roots.pop(pid, None)


def _container_processes() -> dict[int, ProcessStat]:
    """Returns processes of the container; all others are below them."""
    processes: dict[int, ProcessStat] = {}
    for root, (started, group) in _container_roots.items():
        stat = read_stat(root)
        if stat is None or stat.started != started:
            continue
        processes[root] = stat
        with suppress(OSError, ValueError):
            for pid in map(int, (group / "cgroup.procs").read_text().split()) if group is not None else ():
                if (stat := read_stat(pid)) is not None:
                    processes[pid] = stat
    return processes


def namespace_pid(pid: int) -> int:
    """Returns the pid that the process has for itself, which in a container is another one."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            for line in file.read().splitlines():
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        return pid
    return pid


def descendants(root: int) -> list[ProcessStat]:
    """Returns every live process below `root`, without `root` itself. Zombies do not count. Processes of
    containers are below this process."""
    children: dict[bytes, list[tuple[str, list[bytes]]]] = {}
    for name in _list_pids():
        if (fields := _fields(name)) is not None:
            children.setdefault(fields[1], []).append((name, fields))
    stats: list[ProcessStat] = []
    pending = [b"%d" % root]
    found = _container_processes() if _container_roots and root == os.getpid() else {}
    stats += [stat for stat in found.values() if stat.state not in "ZX"]
    pending += [b"%d" % pid for pid in found]
    while pending:
        for name, fields in children.pop(pending.pop(), []):
            if int(name) in found:
                continue
            pending.append(name.encode())
            if fields[0] not in b"ZX":
                stats.append(_stat(int(name), fields))
    return stats


def is_descendant(pid: int, root: int) -> bool:
    """Returns whether a process is below `root`."""
    while pid > 1:
        stat = read_stat(pid)
        if stat is None:
            return False
        if stat.parent == root:
            return True
        pid = stat.parent
    return False


def resident_bytes(pids: Iterable[int]) -> int:
    """Returns the memory of these processes together. It is fast and never much too low: memory shared in
    files or shared memory is counted once, pages shared by forks several times."""
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
    """Returns the exact memory of these processes together (PSS); takes a millisecond per gigabyte and
    process."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                for line in file:
                    if line.startswith(b"Pss:"):
                        total += int(line.split()[1]) * 1024
                        break
        except OSError:
            total += resident_bytes((pid,))  # another user's process: only this is readable
    return total


def kill_processes(pids: Iterable[int]) -> None:
    """Sends SIGKILL to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def kill_descendants(root: int, *, timeout_s: float = 5.0) -> int:
    """Ends and reaps every process below `root`, which must be their subreaper. Returns how many were ended.

    It repeats until none is left, because a process may fork meanwhile.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        pids = [stat.pid for stat in descendants(root)]
        kill_processes(pids)
        killed.update(pids)
        time.sleep(0.002)
    return len(killed)


def find_leftover_processes(folder: Path, session: int, session_started: int) -> Collection[int]:
    """Returns the processes that an earlier replica left: those with its folder in their environment, and
    those of its session.

    `session_started` distinguishes that session from a later one with the same id. Processes of a replica in
    another folder, of which this one is a copy, are excluded.
    """
    stats = [stat for stat in all_stats() if stat.state not in "ZX" and stat.pid != os.getpid()]
    members = [stat.pid for stat in stats if session > 0 and stat.session == session]
    leader = next((stat for stat in stats if stat.pid == session), None)
    session_is_ours = (leader is None or leader.started == session_started) and not belong_to_other_replica(
        members, folder
    )
    pids = set(members if session_is_ours else ())
    for stat in stats:
        if _belongs_to(stat.pid, folder):
            pids.add(stat.pid)
    return pids


def belong_to_other_replica(pids: Collection[int], folder: Path) -> bool:
    """Returns whether the processes of a session or group belong to a replica in another folder: some do, and
    none belongs to this one."""
    return any(_belongs_to_other_replica(pid, folder) for pid in pids) and not any(
        _belongs_to(pid, folder) for pid in pids
    )


def _belongs_to(pid: int, folder: Path) -> bool:
    replica_folder = _folder_of(pid)
    return (
        replica_folder is not None
        and (replica_folder == folder or is_same_file(replica_folder, folder))
        and not _belongs_to_other_replica(pid, folder)
    )


def _belongs_to_other_replica(pid: int, folder: Path) -> bool:
    """Returns whether a process belongs to a replica in another folder, by its working directory or else by
    its environment."""
    try:
        cwd = Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False  # it ended, or is another user's
    if cwd.parts[-4:] in _working_folders(folder):
        return not is_same_file(Path(f"/proc/{pid}/cwd"), folder / "work")
    replica_folder = _folder_of(pid)
    return (
        replica_folder is not None
        and not is_missing(replica_folder)
        and not is_same_file(replica_folder, folder)
    )


def _working_folders(folder: Path) -> tuple[tuple[str, ...], ...]:
    """Returns the ends of both paths of a replica's own working folder: in the attempt, and in the place of
    the run. A process in another mount namespace has the second one."""
    attempts, attempt, rank = folder.parts[-3:]
    return (attempts, attempt, rank, "work"), (RUN_PLACES_DIR, attempt.rpartition(".")[0], rank, "work")


def _folder_of(pid: int) -> Path | None:
    """Returns the replica folder in a process's environment, or None."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None  # a process that we cannot read is not ours to end
    variable = next(
        (entry for entry in environment.split(b"\0") if entry.startswith(_ENVIRONMENT_MARKER)), None
    )
    return None if variable is None else Path(os.fsdecode(variable.removeprefix(_ENVIRONMENT_MARKER)))


def has_variable(pid: int, variable: bytes) -> bool:
    """Returns whether a process was started with this entry, `NAME=value`, in its environment."""
    try:
        return variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def is_missing(path: Path) -> bool:
    """Returns whether the file certainly does not exist. A file that may not be accessed exists."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def is_same_file(path: Path, other: Path) -> bool:
    """Returns whether both paths are the same file, by device and inode."""
    try:
        return path.samefile(other)
    except OSError:
        return False
