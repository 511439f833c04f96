"""Listeners of this machine, as the kernel lists them in two ways, and the processes that have them open."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from ipaddress import ip_address

import pytest

from hopyard.engines.local.port_listener import SocketOwners, find_listeners, is_descendant, read_listeners

LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


def _inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


def test_both_ways_list_the_same_listeners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # no listener
            expected = {(ip_address("127.0.0.1"), _inode(first))}
            assert {(each.address, each.inode) for each in find_listeners(port)} == expected
            with socket.create_server(("127.0.0.9", port)) as second:
                expected.add((ip_address("127.0.0.9"), _inode(second)))
                assert {(each.address, each.inode) for each in find_listeners(port)} == expected
                assert set(read_listeners(port)) == set(find_listeners(port))
    assert list(find_listeners(port)) == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_listeners_of_both_families_are_listed() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        port = listener.getsockname()[1]
        (found,) = find_listeners(port)
        assert (found.inode, found.loopback) == (_inode(listener), "::1")
        assert list(read_listeners(port)) == [found]


def test_owners_of_sockets_are_processes_below_the_root() -> None:
    owners = SocketOwners()
    with (
        subprocess.Popen(
            [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
        socket.create_server(("127.0.0.1", 0)) as own,
    ):
        assert child.stdin is not None and child.stdout is not None
        (listener,) = find_listeners(int(child.stdout.readline()))
        assert is_descendant(child.pid, os.getpid())
        assert not is_descendant(os.getpid(), child.pid)
        for _ in range(2):  # by a search, and from memory
            assert owners.own_all([listener.inode], os.getpid())
            assert not owners.own_all([listener.inode], child.pid)  # of the child, not below it
            assert not owners.own_all([listener.inode, _inode(own)], os.getpid())
        child.stdin.close()
        child.wait(timeout=60)
    assert not owners.own_all([listener.inode], os.getpid())
