"""Samples of the network, which the kernel counts for each interface."""

from __future__ import annotations

from pathlib import Path

from hopyard.replica.system_metrics import read_network_bytes

_COUNTERS = """Inter-|   Receive                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop
    lo: 99 1 0 0 0 0 0 0 99 1 0 0 0 0 0 0
none-a: 1000 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0
none-b:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
"""


def test_network_bytes_are_those_of_all_interfaces_but_the_loopback(tmp_path: Path) -> None:
    counters = tmp_path / "dev"
    counters.write_text(_COUNTERS)
    assert read_network_bytes(str(counters)) == (1005, 27)
    assert read_network_bytes(str(tmp_path / "none")) == (0, 0)
    received, sent = read_network_bytes()
    assert received >= 0 and sent >= 0
