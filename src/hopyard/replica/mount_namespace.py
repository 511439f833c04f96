"""Limits which files of the home a run's process can see and write, with private mounts where the kernel
allows them.

The mounts are made in a user namespace in which every user keeps its id. There a process can also neither
trace nor read processes outside of it, such as its replica, the server and other runs, regardless of its
capabilities. If the kernel allows no such namespace, root makes the mounts in a mount namespace alone. Plain
system calls only, for use between fork and exec.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x20000, 0x4000000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 19,
)
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_CAPABILITY_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER = 24, 47, 3
# With these root could write to read-only mounts: CAP_DAC_READ_SEARCH (files by handle), CAP_SYS_MODULE,
# CAP_SYS_RAWIO, CAP_SYS_PTRACE (the mounts of other processes below /proc), CAP_SYS_ADMIN (umount, nsenter),
# CAP_MKNOD (the disk itself).
_DANGEROUS_CAPABILITIES = (2, 16, 17, 19, 21, 27)
_EMPTY_MOUNT_FLAGS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC


class IsolationMode(StrEnum):
    """What isolates a run from files of the home that are not its own."""

    MOUNTS = "mount namespace"
    USER_NAMESPACE = "user namespace"
    MODES = "modes"


@dataclass(frozen=True, slots=True)
class MountView:
    """The view of a home for one process and its children. Real paths, without links.

    unmounted: folders that appear empty, now and later, except for the other paths below them and `links`.
    read_only: folders and files, with everything below them. hidden: files and folders that appear empty.
    writable: folders that stay as they are, also below the other ones. links: the target of each symbolic
    link directly in an unmounted folder. mounts: the tree or file, read-only, at each existing path.
    places: the folder, writable, at each of these paths below an unmounted folder. host_name: what `hostname`
    prints, where the kernel allows a private one; "" for that of the machine.
    """

    read_only: Sequence[Path] = ()
    hidden: Sequence[Path] = ()
    writable: Sequence[Path] = ()
    unmounted: Sequence[Path] = ()
    links: Mapping[Path, Path] = field(default_factory=dict)
    mounts: Mapping[Path, Path] = field(default_factory=dict)
    places: Mapping[Path, Path] = field(default_factory=dict)
    host_name: str = ""


@cache
def detect_isolation_mode() -> IsolationMode:
    """Returns the best mode that works here; tested once, in a separate process."""
    modes = (IsolationMode.USER_NAMESPACE, IsolationMode.MOUNTS)
    return next((mode for mode in modes if _is_supported(mode)), IsolationMode.MODES)


def open_user_namespace() -> int | None:
    """Returns a descriptor of a new user namespace for several processes, such as the replicas of a gang.

    They may trace each other and share memory of GPUs. Returns None in another isolation mode. Raises
    OSError.
    """
    if detect_isolation_mode() is not IsolationMode.USER_NAMESPACE:
        return None
    (created_read, created_write), (exit_read, exit_write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(exit_write)
            _create_user_namespace()
            os.write(created_write, b"1")
            os.read(exit_read, 1)
        finally:
            os._exit(0)
    os.close(created_write)
    try:
        return (
            os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            if os.read(created_read, 1)
            else None
        )
    finally:
        for descriptor in (created_read, exit_read, exit_write):
            os.close(descriptor)
        os.waitpid(child, 0)


def apply_view(view: MountView, isolation_mode: IsolationMode, namespace: int | None = None) -> None:
    """Applies the view to this process. namespace: a user namespace to enter; None creates one. Raises
    OSError if it fails half-way."""
    if isolation_mode is IsolationMode.MODES:
        return
    _unshare(isolation_mode, namespace)
    if view.host_name and _libc.unshare(_CLONE_NEWUTS) == 0:
        name = view.host_name.encode()
        _libc.sethostname(name, len(name))
    # Opened in this namespace: the kernel binds no paths of another one.
    read_only, writable = _open(view.read_only), _open(view.writable)
    trees, places = _open_sources(view.mounts), _open_sources(view.places)
    emptied = [path for path in view.unmounted if _mount_empty(path)]
    for path, descriptor in read_only:
        _bind(descriptor, path)
        _set_read_only(path)
    emptied += [path for path in view.hidden if _mount_empty(path)]
    for path, descriptor in writable:
        _bind(descriptor, path)
    for path, descriptor in places:
        _bind(descriptor, path)
    for path, target in view.links.items():
        os.symlink(target, path)
    for path, descriptor in trees:
        _bind(descriptor, path)
        _set_read_only(path)
    for path in emptied:
        _mount(None, path, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | _EMPTY_MOUNT_FLAGS)
    _clear_inheritable()
    for (
        capability
    ) in _DANGEROUS_CAPABILITIES:  # after the mounts, which take one of them; exec does not give them back
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, capability, 0, 0)
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _open(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    return [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in paths]


def _open_sources(mounts: Mapping[Path, Path]) -> list[tuple[Path, int]]:
    opened = _open([*mounts.values()])
    return [(path, descriptor) for path, (_, descriptor) in zip(mounts, opened, strict=True)]


def _bind(descriptor: int, path: Path) -> None:
    """Mounts the opened path at `path`, which may have been covered meanwhile, and closes the descriptor."""
    if not path.exists():
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _mount(f"/proc/self/fd/{descriptor}", path, flags=_MS_BIND | _MS_REC)
    os.close(descriptor)


def _is_supported(isolation_mode: IsolationMode) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _unshare(isolation_mode)
            _mount("/", "/", flags=_MS_BIND | _MS_REC)
            _mount("tmpfs", "/", kind="tmpfs", flags=_EMPTY_MOUNT_FLAGS)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _unshare(isolation_mode: IsolationMode, namespace: int | None = None) -> None:
    if namespace is not None:
        _check(_libc.setns(namespace, _CLONE_NEWUSER))
    elif isolation_mode is IsolationMode.USER_NAMESPACE:
        _create_user_namespace()
    _check(_libc.unshare(_CLONE_NEWNS))
    # later mounts outside become visible here, but mounts here stay private
    _mount(None, "/", flags=_MS_REC | _MS_SLAVE)


def _create_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _map_all_users(partial(_libc.unshare, _CLONE_NEWUSER))
        return
    _check(_libc.unshare(_CLONE_NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        _write(f"/proc/self/{name}", text)


def _clear_inheritable() -> None:
    """Clears the inheritable set, from which root's exec would restore the capabilities despite the bounding
    set."""
    # effective, permitted, inheritable, twice
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, sets))
    sets[2] = sets[5] = 0
    _check(_libc.capset(header, sets))


def _map_all_users(unshare: Callable[[], int]) -> None:
    """For root: creates a user namespace with the users and groups of this one. Only a process outside of it
    may map them."""
    pid, maps = os.getpid(), {}
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as current_map:
            maps[name] = "".join(
                f"{inside} {inside} {count}\n" for inside, _, count in map(str.split, current_map)
            )
    start_read, start_write = os.pipe2(os.O_CLOEXEC)
    mapper = os.fork()
    if mapper == 0:
        code = 1
        try:
            os.close(start_write)
            if os.read(start_read, 1):
                for name, text in maps.items():
                    _write(f"/proc/{pid}/{name}", text)
                code = 0
        finally:
            os._exit(code)
    os.close(start_read)
    try:
        _check(unshare())
        os.write(start_write, b"1")
    finally:
        os.close(start_write)
        is_mapped = os.waitpid(mapper, 0)[1] == 0
    if not is_mapped:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def _write(file: str, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _mount_empty(path: Path) -> bool:
    """Covers `path` with an empty file or folder. Returns whether it is a folder."""
    with suppress(FileNotFoundError):  # a temporary file of the database
        if not path.is_dir():
            _mount(os.devnull, path, flags=_MS_BIND)
            return False
        _mount("tmpfs", path, kind="tmpfs", flags=_EMPTY_MOUNT_FLAGS, data="size=1m,mode=0700")
        return True
    return False


def _set_read_only(folder: Path) -> None:
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(folder),
        _AT_RECURSIVE,
        attributes,
        ctypes.sizeof(attributes),
    )
    if result != 0:  # a kernel before 5.12: mounts below it stay writable
        # a user namespace may not clear these flags
        locked_flags = os.statvfs(folder).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        _mount(None, folder, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | locked_flags)


def _mount(
    source: str | Path | None,
    target: str | Path,
    *,
    flags: int,
    kind: str | None = None,
    data: str | None = None,
) -> None:
    arguments = [None if argument is None else os.fsencode(argument) for argument in (source, target, kind)]
    _check(_libc.mount(*arguments, flags, None if data is None else data.encode()))


def _check(result: int) -> None:
    if result != 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))
