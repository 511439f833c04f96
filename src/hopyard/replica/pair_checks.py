"""Checks the connections between the replicas of a gang before their scripts start, beside the preparation.

Each replica connects to the others, compares the clocks, measures the bandwidth, exchanges its findings with
theirs, and adds up numbers with them where the launcher has an all-reduce. All replicas thus judge the same
findings.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from hopyard.domain.pair_verdict import PairProbe, PairReport, judge_pairs
from hopyard.domain.preflight import (
    PREFLIGHT_LIMIT_S,
    Check,
    CheckFailure,
    all_reduce_turns,
    checked_peers,
    has_all_reduce,
)
from hopyard.domain.replica import ProbeAddress, ReplicaSpec
from hopyard.replica.probe_channel import ProbeChannel, ProbeError
from hopyard.replica.replica_log import log

# after this time, a replica that runs and still cannot be connected to is unreachable: it refuses, or it does
# not answer, which may also be the load of its machine
_ALIVE_GRACE_S, _SILENCE_GRACE_S = 3.0, 12.0
_CONNECT_SHARE = 0.8  # of the time limit; the rest is for the exchange of the findings
_CONNECT_TIMEOUT_S, _GREETING_TIMEOUT_S = 5.0, 5.0
_RETRY_RANGE_S = (0.02, 0.5)
_CLOCK_SAMPLES = 3
_BURSTS, _BURST_BYTES = 4, 256 * 1024
_ALL_REDUCE_NUMBERS = 256
_EXTRA_CONNECTIONS = 16  # of other programs, at once


class PairChecks:
    """The checks of one replica with its peers, in threads of their own.

    addresses: of all replicas of the gang that are checked, by rank. reduces: they also add up numbers.
    on_failure: called in such a thread when a check failed. limit_s: for all checks. clock: the Unix time.
    """

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, ProbeAddress],
        secret: str,
        *,
        reduces: bool = False,
        on_failure: Callable[[], None] = lambda: None,
        limit_s: float = PREFLIGHT_LIMIT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rank, self._secret, self._clock = rank, secret, clock
        self._addresses, self._ranks = addresses, sorted(addresses)
        self._peers = checked_peers(self._rank, self._ranks)
        self._reduces, self._on_failure, self._limit_s = reduces, on_failure, limit_s
        self._deadline = self._connect_deadline = 0.0  # by the monotonic clock, from the start
        self._changed = threading.Condition()
        # guarded by `_changed`
        self._alive_at: dict[int, float] = {}  # peers that have connected, by the monotonic clock
        self._connected: set[int] = set()  # peers with a connection to this replica now
        self._reports: dict[int, PairReport] = {}
        self._partial_sums: dict[int, list[int]] = {}  # by turn
        self._is_finished, self._is_closed = False, False
        self.failure: CheckFailure | None = None
        self.warnings: tuple[str, ...] = ()

    @classmethod
    def find(
        cls,
        spec: ReplicaSpec,
        *,
        on_failure: Callable[[], None] = lambda: None,
        limit_s: float = PREFLIGHT_LIMIT_S,
        clock: Callable[[], float] = time.time,
    ) -> PairChecks | None:
        """Returns the checks of a replica; None if it has no peers to be checked with."""
        launch, addresses = spec.launch, {address.rank: address for address in spec.node.probe_addresses}
        if not launch.preflight.secret or launch.rank not in addresses or len(addresses) < 2:
            return None
        return cls(
            launch.rank,
            addresses,
            launch.preflight.secret,
            reduces=has_all_reduce(launch.preflight.checks, launch.launcher),
            on_failure=on_failure,
            limit_s=limit_s,
            clock=clock,
        )

    def start(self) -> None:
        began = time.monotonic()
        self._deadline = began + self._limit_s
        self._connect_deadline = began + self._limit_s * _CONNECT_SHARE
        threading.Thread(target=self._run, name="pair checks", daemon=True).start()

    def wait(self) -> None:
        """Returns when `failure` and `warnings` are final."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_finished)

    def probe_of(self, peer: int) -> PairProbe:
        """Returns what was found about a peer; with an error when the checks ended before."""
        report = self._reports.get(self._rank)
        found = "" if self.failure is None else self.failure.found
        return PairProbe(found or "not checked") if report is None else report.probes[peer]

    def close(self) -> None:
        """Ends all connections. Call it only when the replica ends: peers may still need its answers."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # -- the checks ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.failure = self._check()
        except Exception as error:  # the script must not start unchecked, nor wait for ever
            log(f"pair checks: {error!r}")
            self.failure = CheckFailure(Check.PAIRS, f"the checks between replicas failed: {error}")
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()
        if self.failure is not None:
            self._on_failure()

    def _check(self) -> CheckFailure | None:
        own = self._addresses[self._rank]
        try:
            listener = socket.create_server((own.host, own.port), backlog=128)
        except OSError as error:
            reason = error.strerror or str(error)
            return CheckFailure(
                Check.PAIRS,
                f"replica {own.rank} on node {own.node} cannot listen at {own.host}:{own.port}: {reason}",
                "end the program that uses the port, or let the run start again with another one",
            )
        threading.Thread(target=self._listen, args=(listener,), name="pair listener", daemon=True).start()
        channels: dict[int, ProbeChannel] = {}
        try:
            return self._check_peers(channels)
        finally:
            for channel in channels.values():
                channel.close()

    def _check_peers(self, channels: dict[int, ProbeChannel]) -> CheckFailure | None:
        probes = dict(self._connect_all(channels))
        for peer in self._peers_from_next():
            if peer in channels:
                probes[peer] = self._probe(channels, peer)
        self._add_report(PairReport(self._rank, probes))
        self._exchange_reports(channels)
        with self._changed:
            verdict = judge_pairs(
                [self._reports[rank] for rank in sorted(self._reports)],
                {rank: address.node for rank, address in self._addresses.items()},
            )
        self.warnings = verdict.warnings
        failure = verdict.failure_for(self._rank)
        return failure or (self._all_reduce(channels) if self._reduces else None)

    def _peers_from_next(self) -> Sequence[int]:
        """Returns the peers, beginning with the next larger rank: not all begin with the same one."""
        return sorted(self._peers, key=lambda peer: (peer < self._rank, peer))

    def _connect_all(self, channels: dict[int, ProbeChannel]) -> Mapping[int, PairProbe]:
        """Connects to all peers at once. Returns the errors of those that failed."""
        errors: dict[int, PairProbe] = {}

        def connect(peer: int) -> None:
            result = self._connect(self._addresses[peer])
            with self._changed:
                if isinstance(result, PairProbe):
                    errors[peer] = result
                else:
                    channels[peer] = result

        threads = [
            threading.Thread(target=connect, args=(peer,), name=f"connect to {peer}", daemon=True)
            for peer in self._peers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    def _connect(self, address: ProbeAddress) -> ProbeChannel | PairProbe:
        """Returns a channel to a peer, or why there is none. Retries while the peer may be about to start."""
        pause_s = _RETRY_RANGE_S[0]
        while True:
            remaining_s = max(self._connect_deadline - time.monotonic(), 0.05)
            try:
                connection = socket.create_connection(
                    (address.host, address.port), timeout=min(_CONNECT_TIMEOUT_S, remaining_s)
                )
                channel = ProbeChannel(
                    connection, min(time.monotonic() + _GREETING_TIMEOUT_S, self._deadline)
                )
                try:
                    channel.greet(self._secret, self._rank, address.rank)
                    channel.set_deadline(self._deadline)
                    return channel
                except BaseException:
                    channel.close()
                    raise
            except OSError as error:
                text = f"{_error_text(error)} at {address.host}:{address.port}"
                grace_s = _SILENCE_GRACE_S if isinstance(error, TimeoutError) else _ALIVE_GRACE_S
                is_refused = isinstance(error, ConnectionRefusedError)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, timeout=pause_s)
                now, alive_at = time.monotonic(), self._alive_at.get(address.rank)
                if (
                    self._is_closed
                    or now >= self._connect_deadline
                    or (alive_at is not None and now >= alive_at + grace_s)
                ):
                    return PairProbe(text, is_absent=is_refused and alive_at is None)
            pause_s = min(pause_s * 2, _RETRY_RANGE_S[1])

    def _probe(self, channels: dict[int, ProbeChannel], peer: int) -> PairProbe:
        channel = channels[peer]
        try:
            return PairProbe("", self._measure_skew(channel), _measure_bandwidth(channel))
        except OSError as error:
            channels.pop(peer).close()
            self._wait_for_stop()
            return PairProbe(_error_text(error))

    def _measure_skew(self, channel: ProbeChannel) -> float:
        """Returns how much later the clock of the peer is: of several samples the one with the fastest
        answer."""
        samples: list[tuple[float, float]] = []
        for _ in range(_CLOCK_SAMPLES):
            sent_at, began = self._clock(), time.perf_counter()
            channel.send(do="clock")
            answer = channel.receive().get("clock")
            took_s = time.perf_counter() - began
            if not isinstance(answer, int | float):
                raise ProbeError("another program answers")
            samples.append((took_s, answer - sent_at - took_s / 2))
        return min(samples)[1]

    def _add_report(self, report: PairReport) -> None:
        with self._changed:
            self._reports[report.rank] = report
            self._changed.notify_all()

    def _exchange_reports(self, channels: Mapping[int, ProbeChannel]) -> None:
        """Sends the report to each peer and receives the one of that peer. A peer to which no connection was
        possible may connect to this replica, and then gets the report by that connection."""
        own = _report_json(self._reports[self._rank])
        lost: list[int] = []
        for peer in self._peers_from_next():
            if peer not in channels:
                continue
            try:
                channels[peer].send(do="report", report=own)
                self._add_report(_parse_report(peer, channels[peer].receive().get("report")))
            except OSError as error:
                if peer not in self._reports:  # with both reports, a short script may have ended already
                    lost.append(peer)
                    log(f"pair checks: no report of replica {peer}: {error}")
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._alive_at.keys() <= self._reports.keys() | set(lost),
                timeout=min(self._deadline - time.monotonic(), _ALIVE_GRACE_S),
            )
        if lost:
            self._wait_for_stop()
            probes = {peer: PairProbe("the connection broke") for peer in lost}
            self._add_report(PairReport(self._rank, {**self._reports[self._rank].probes, **probes}))

    def _wait_for_stop(self) -> None:
        """Waits for the order to stop that follows when a peer ended by itself, for a reason of its own."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, timeout=_ALIVE_GRACE_S)

    def _all_reduce(self, channels: Mapping[int, ProbeChannel]) -> CheckFailure | None:
        """Adds up numbers of all replicas."""
        size, position = len(self._ranks), self._ranks.index(self._rank)
        numbers = [self._rank + 1 + i for i in range(_ALL_REDUCE_NUMBERS)]
        total = numbers
        try:
            for turn, (distance, from_own) in enumerate(all_reduce_turns(size)):
                following = self._ranks[(position + distance) % size]
                channels[following].send(do="sum", turn=turn, numbers=total)
                channels[following].receive()
                received = self._receive_numbers(turn)
                added = numbers if from_own else total
                total = [one + other for one, other in zip(added, received, strict=True)]
        except (OSError, ValueError) as error:
            self._wait_for_stop()
            return CheckFailure(
                Check.ALL_REDUCE,
                f"replica {self._rank} did not get the sum of all replicas: {_error_text(error)}",
                "check that all replicas started; use `hop logs` to see why one ended",
            )
        expected = [sum(rank + 1 + i for rank in self._ranks) for i in range(_ALL_REDUCE_NUMBERS)]
        if total != expected:
            return CheckFailure(
                Check.ALL_REDUCE,
                f"replica {self._rank} got a wrong sum",
                "check the network for damaged data",
            )
        return None

    def _receive_numbers(self, turn: int) -> list[int]:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._is_closed or turn in self._partial_sums, self._deadline - time.monotonic()
            ):
                raise TimeoutError("no answer in time")
            if turn not in self._partial_sums:
                raise ConnectionResetError("the connection was closed")
            return self._partial_sums.pop(turn)

    # -- answers to the peers --------------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        """Answers the peers until all of them have their results, at most until the time limit."""
        free = threading.Semaphore(2 * len(self._peers) + _EXTRA_CONNECTIONS)
        end = self._deadline + _ALIVE_GRACE_S
        with listener:
            while not self._is_done(end):
                listener.settimeout(0.2)
                try:
                    connection, _ = listener.accept()
                except OSError:  # nothing came
                    continue
                if free.acquire(blocking=False):
                    threading.Thread(
                        target=self._answer, args=(connection, end, free), name="pair answers", daemon=True
                    ).start()
                else:
                    connection.close()

    def _is_done(self, end: float) -> bool:
        with self._changed:
            all_came = self._is_finished and self._alive_at.keys() >= set(self._peers) and not self._connected
            return self._is_closed or all_came or time.monotonic() >= end

    def _answer(self, connection: socket.socket, end: float, free: threading.Semaphore) -> None:
        peer: int | None = None
        channel = ProbeChannel(connection, min(time.monotonic() + _GREETING_TIMEOUT_S, end))
        try:
            rank = channel.answer_greeting(self._secret, self._rank)
            if rank not in self._peers:
                return
            peer = rank
            channel.set_deadline(end)
            with self._changed:
                self._alive_at.setdefault(peer, time.monotonic())
                self._connected.add(peer)
                self._changed.notify_all()
            while True:
                self._answer_request(channel, peer, channel.receive())
        except OSError:
            return  # the peer has what it needs, or is no peer
        finally:
            channel.close()
            free.release()
            with self._changed:
                if peer is not None:
                    self._connected.discard(peer)
                self._changed.notify_all()

    def _answer_request(self, channel: ProbeChannel, peer: int, request: dict[str, Any]) -> None:
        match request.get("do"):
            case "clock":
                channel.send(clock=self._clock())
            case "data":
                for _ in range(_BURSTS):
                    channel.receive_bytes(_BURST_BYTES)
                    channel.send(received=True)
            case "report":
                self._add_report(_parse_report(peer, request.get("report")))
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._is_closed or self._rank in self._reports,
                        timeout=max(0.0, self._deadline - time.monotonic()),
                    )
                    own = self._reports.get(self._rank)
                if own is None:
                    raise ProbeError("no report in time")
                channel.send(report=_report_json(own))
            case "sum":
                turn, numbers = request.get("turn"), request.get("numbers")
                if not isinstance(turn, int) or not isinstance(numbers, list):
                    raise ProbeError("not a sum")
                with self._changed:
                    self._partial_sums[turn] = numbers
                    self._changed.notify_all()
                channel.send(received=True)
            case _:
                raise ProbeError("unknown request")


def probe_this_machine(limit_s: float = PREFLIGHT_LIMIT_S) -> PairProbe:
    """Returns what two replicas on this machine would find about their connection."""
    secret, host = secrets.token_hex(32), "127.0.0.1"
    with socket.create_server((host, 0)) as first, socket.create_server((host, 0)) as second:
        ports = [listener.getsockname()[1] for listener in (first, second)]
    addresses = {rank: ProbeAddress(rank, "", host, port) for rank, port in enumerate(ports)}
    both = [PairChecks(rank, addresses, secret, limit_s=limit_s) for rank in addresses]
    for checks in both:
        checks.start()
    for checks in both:
        checks.wait()
        checks.close()
    return both[0].probe_of(1)


def _measure_bandwidth(channel: ProbeChannel) -> float:
    """Returns bytes per second: of the fastest of a few short bursts."""
    burst, fastest_s = bytes(_BURST_BYTES), float("inf")
    channel.send(do="data")
    for _ in range(_BURSTS):
        began = time.perf_counter()
        channel.send_bytes(burst)
        channel.receive()
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return _BURST_BYTES / max(fastest_s, 1e-9)


def _report_json(report: PairReport) -> dict[str, Any]:
    return {str(peer): asdict(probe) for peer, probe in report.probes.items()}


def _parse_report(rank: int, value: object) -> PairReport:
    """Raises ProbeError."""
    with suppress(AttributeError, TypeError, ValueError):
        probes = {
            int(peer): PairProbe(
                str(probe["error"]),
                float(probe["skew_s"]),
                float(probe["bytes_per_s"]),
                is_absent=probe["is_absent"] is True,
            )
            for peer, probe in value.items()  # type: ignore[attr-defined]
        }
        return PairReport(rank, probes)
    raise ProbeError("not a report")


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)).lower()
