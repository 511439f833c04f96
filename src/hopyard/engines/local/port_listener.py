"""The sockets of this machine that listen on a port, and the process of a replica that has one open."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

# <linux/netlink.h>, <linux/sock_diag.h>
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=LHHLL")
_TCP_LISTEN = 10
_LISTEN = f"{_TCP_LISTEN:02X}"  # in /proc/net/tcp
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
# of `struct inet_diag_msg`, behind the header of the message
_STATE_OFFSET, _PORT_OFFSET, _ADDRESS_OFFSET, _INODE_OFFSET, _MESSAGE_BYTES = 1, 4, 8, 68, 72
_TIMEOUT_S = 1.0
_MAX_OWNERS = 1024  # of sockets that are remembered


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket of this machine that listens. inode: its number, as in the links of `/proc/PID/fd`."""

    address: IPv4Address | IPv6Address
    inode: int

    @property
    def loopback(self) -> str:
        """The address to which a process of this machine connects."""
        if not self.address.is_unspecified:
            return str(self.address)
        return "127.0.0.1" if self.address.version == 4 else "::1"


def find_listeners(port: int) -> Sequence[Listener]:
    """Returns the sockets of this machine that listen on a port.

    The kernel reads its whole table of connections for /proc/net/tcp, which takes milliseconds. The request
    here reads only listeners.
    """
    try:
        return [listener for family in _FAMILIES for listener in _query_kernel(family, port)]
    except (OSError, ValueError, struct.error):  # a sandbox without these sockets
        return list(read_listeners(port))


def _query_kernel(family: int, port: int) -> Iterator[Listener]:
    """Yields the listeners of one family. Raises OSError, ValueError."""
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN)
    request += struct.pack("!HH", port, 0) + bytes(36) + b"\xff" * 8  # the port, any address, no cookie
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
    ) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        netlink.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + request)
        while True:
            data = netlink.recv(1 << 18)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR or not _HEADER.size <= length <= len(data):
                    raise ValueError("the kernel refused to list the listeners")
                yield from _parse(data[_HEADER.size : length], port)
                data = data[(length + 3) & ~3 :]


def _parse(message: bytes, port: int) -> Iterator[Listener]:
    if len(message) < _MESSAGE_BYTES or message[_STATE_OFFSET] != _TCP_LISTEN:
        return
    if struct.unpack_from("!H", message, _PORT_OFFSET)[0] == port:
        size = 4 if message[0] == socket.AF_INET else 16
        address = ip_address(message[_ADDRESS_OFFSET : _ADDRESS_OFFSET + size])
        yield Listener(_unmapped(address), struct.unpack_from("=I", message, _INODE_OFFSET)[0])


def read_listeners(port: int) -> Iterator[Listener]:
    """As `find_listeners`, from the text files of the kernel."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table) as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTEN and fields[1].endswith(f":{port:04X}"):
                    yield Listener(_address(fields[1].partition(":")[0]), int(fields[9]))


def _address(digits: str) -> IPv4Address | IPv6Address:
    """Returns an address in the form of /proc/net/tcp: 32-bit words in the byte order of the machine."""
    words = (int(digits[start : start + 8], 16) for start in range(0, len(digits), 8))
    return _unmapped(ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words)))


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


# -- processes -----------------------------------------------------------------------------------------------


class SocketOwners:
    """Finds the processes of replicas that have sockets open. Remembers the process of each socket: a page
    makes dozens of connections, and a search through all processes takes milliseconds."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}  # by inode

    def own_all(self, inodes: Iterable[int], root: int) -> bool:
        """Returns whether processes below the process `root` have all of these sockets open."""
        unknown = set(inodes)
        for inode in list(unknown):
            pid = self._owners.pop(inode, None)
            # both are checked again: the process may have ended, and its number be another one's now
            if pid is not None and is_descendant(pid, root) and inode in socket_inodes(pid, {inode}):
                self._owners[inode] = pid
                unknown.remove(inode)
        if unknown:
            for pid in descendants(root):
                for inode in set(socket_inodes(pid, unknown)):
                    self._remember(inode, pid)
                    unknown.remove(inode)
                if not unknown:
                    break
        return not unknown

    def _remember(self, inode: int, pid: int) -> None:
        if len(self._owners) >= _MAX_OWNERS:
            self._owners.clear()
        self._owners[inode] = pid


def is_descendant(pid: int, root: int) -> bool:
    """Returns whether a process runs below another one."""
    while pid > 1:
        pid = _parent(pid)
        if pid == root:
            return True
    return False


def descendants(pid: int) -> Sequence[int]:
    """Returns the processes below a replica program, which adopts the orphans of its script."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and (parent := _parent(int(process.name))):
            children.setdefault(parent, []).append(int(process.name))
    found, waiting = [], list(children.get(pid, ()))
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], ())
    return found


def _parent(pid: int) -> int:
    """Returns the parent of a process; 0 if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])
    except (OSError, ValueError, IndexError):
        return 0


def socket_inodes(pid: int, wanted: set[int]) -> Iterator[int]:
    """Yields those of the wanted sockets that a process has open."""
    links = {f"socket:[{inode}]": inode for inode in wanted}
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inode = links.get(str(descriptor.readlink()))
                if inode is not None:
                    yield inode
