"""The checks between replicas of a gang, over real connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.pair_verdict import PairProbe
from hopyard.domain.preflight import Check, CheckFailure, Preflight, PreflightLaunch
from hopyard.domain.replica import NodeContext, ProbeAddress, ReplicaSpec
from hopyard.domain.resources import Resources
from hopyard.engines.local.ports import PortClaims
from hopyard.replica.pair_checks import PairChecks
from hopyard.replica.probe_channel import ProbeChannel

SECRET = "5e" * 32


@contextmanager
def gang(nodes: str, **changed: int) -> Iterator[list[ReplicaSpec]]:
    """Yields the specs of replicas on these nodes. changed: the ports at which others look for a replica, by
    its name: `r2=1`."""
    with closing(PortClaims()) as claims:
        addresses = [
            ProbeAddress(rank, node, f"127.9.0.{rank + 1}", claims.choose())
            for rank, node in enumerate(nodes)
        ]
        yield [
            make_spec(
                own.rank,
                tuple(
                    replace(address, port=changed.get(f"r{address.rank}", address.port))
                    if address is not own
                    else own
                    for address in addresses
                ),
            )
            for own in addresses
        ]


def make_spec(rank: int, addresses: tuple[ProbeAddress, ...]) -> ReplicaSpec:
    ranks = tuple(address.rank for address in addresses)
    launch = ReplicaLaunch(
        AttemptId("a.1"), RunId("a"), "me/p/1", rank, "worker", rank, len(ranks), ("true",), Resources(),
        "http://127.0.0.1:1", "token", preflight=PreflightLaunch(Preflight.FULL, SECRET, "", ranks),
    )  # fmt: skip
    return ReplicaSpec(launch, NodeContext("a", "/home", "/home/server", 1, probe_addresses=addresses))


def run_checks(
    specs: Sequence[ReplicaSpec],
    *,
    limit_s: float = 60.0,
    clocks: Mapping[int, Callable[[], float]] | None = None,
) -> list[CheckFailure | None]:
    """Runs the checks of these replicas, and returns their failures."""
    checks = [
        PairChecks.find(spec, limit_s=limit_s, clock=(clocks or {}).get(spec.launch.rank, time.time))
        for spec in specs
    ]
    found = [each for each in checks if each is not None]
    assert len(found) == len(specs)
    for each in found:
        each.start()
    for each in found:
        each.wait()
    for each in found:
        each.close()
    return [each.failure for each in found]


def test_replicas_of_two_nodes_check_each_other_and_add_up() -> None:
    with gang("aabb") as specs:
        assert run_checks(specs) == [None] * 4


def test_replicas_of_a_gang_without_full_mesh_add_up() -> None:
    with gang("abc" * 6) as specs:
        assert run_checks(specs) == [None] * 18


def test_unreachable_replica_is_named_and_only_its_own_node_blamed() -> None:
    with gang("abcd", r2=9) as specs:  # no program listens at port 9 of its address
        failures = run_checks(specs)
    found = {failure.found for failure in failures if failure is not None}
    assert len(found) == 1, failures
    assert (
        "no connection between replica 2 on node c and replicas 0, 1 and 3: connection refused" in found.pop()
    )
    assert [failure.blames_node for failure in failures if failure] == [False, False, True, False]


def test_replica_blames_no_node_when_the_others_never_start() -> None:
    """The engine may end while it launches a gang."""
    with gang("abc") as specs:
        (failure,) = run_checks(specs[:1], limit_s=1.0)
    assert failure is not None
    assert failure.found.startswith(
        "replicas 1 and 2 on nodes b and c did not start: connection refused at 127.9.0.2:"
    )
    assert not failure.blames_node


def test_program_that_knows_no_secret_is_no_answer() -> None:
    stranger = socket.create_server(("127.9.0.2", 0))
    port = stranger.getsockname()[1]

    def answer() -> None:
        while True:
            try:
                connection, _ = stranger.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    with gang("ab", r1=port) as specs:
        failures = run_checks(specs)
    stranger.shutdown(socket.SHUT_RDWR)
    stranger.close()
    for failure in failures:
        assert failure is not None
        assert failure.found == (
            f"replica 0 on node a cannot connect to replica 1 on node b: another program answers at "
            f"127.9.0.2:{port}"
        )
        assert not failure.blames_node, "one pair does not show which of the two is to blame"


def test_replica_with_another_secret_is_refused() -> None:
    with gang("ab") as specs:
        launch = specs[1].launch
        stranger = replace(launch, preflight=replace(launch.preflight, secret="00" * 32))
        failures = run_checks([specs[0], replace(specs[1], launch=stranger)], limit_s=2.0)
    assert all(failure is not None and failure.check is Check.PAIRS for failure in failures)


def test_clock_of_one_replica_is_found() -> None:
    with gang("abc") as specs:
        failures = run_checks(specs, clocks={1: lambda: time.time() + 3600})
    assert all(failure is not None and failure.check is Check.SKEW for failure in failures)
    assert [failure.blames_node for failure in failures if failure] == [False, True, False]


def test_taken_port_is_named() -> None:
    with gang("ab") as specs:
        own = specs[0].node.probe_addresses[0]
        with closing(socket.create_server((own.host, own.port))):
            (failure,) = run_checks(specs[:1], limit_s=2.0)
    assert failure is not None
    assert f"cannot listen at {own.host}:{own.port}: Address already in use" in failure.found


def test_peer_that_ends_right_after_its_report_is_no_failure() -> None:
    """Its script may be that short. The exchange back to it then fails."""
    with gang("ab") as specs:
        launch = replace(
            specs[0].launch, preflight=replace(specs[0].launch.preflight, checks=Preflight.PAIRS)
        )
        checks = PairChecks.find(replace(specs[0], launch=launch), limit_s=60.0)
        other, own = specs[0].node.probe_addresses
        deadline, has_reported = time.monotonic() + 60, threading.Event()
        with closing(socket.create_server((own.host, own.port))) as listener:

            def answer() -> None:
                channel = ProbeChannel(listener.accept()[0], deadline)
                channel.answer_greeting(SECRET, 1)
                while (request := channel.receive()["do"]) != "report":
                    if request == "clock":
                        channel.send(clock=time.time())
                    else:
                        for _ in range(4):
                            channel.receive_bytes(256 * 1024)
                            channel.send(received=True)
                has_reported.wait(60)
                channel.close()

            answering = threading.Thread(target=answer, daemon=True)
            answering.start()
            assert checks is not None
            checks.start()
            while True:
                with suppress(ConnectionRefusedError):
                    connection = socket.create_connection((other.host, other.port))
                    break
                assert time.monotonic() < deadline
            channel = ProbeChannel(connection, deadline)
            channel.greet(SECRET, 1, 0)
            channel.send(do="report", report={"0": asdict(PairProbe("", 0.0, 1e9))})
            assert channel.receive()["report"]["1"]["error"] == ""
            has_reported.set()
            checks.wait()
            channel.close()
            checks.close()
            answering.join(60)
    assert checks.failure is None
