"""Follows a run until it ends: its states, its progress and its output.

No byte of the output is lost or doubled when the connection breaks or the server restarts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, TypeVar

from hopyard.api_client.client import Client
from hopyard.client.run_lookup import get_attempt_number
from hopyard.domain.metric_values import MetricValue
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.domain.text import first_line
from hopyard.errors import ServerFault, ServerUnavailable

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_IDLE_TIMEOUT_S = 45.0  # the server pings every 15 s
_FIRST_RETRY_S, _MAX_RETRY_S, _NOTICE_AFTER_S = 0.05, 1.0, 1.0
_SERVER_FAULT_TIMEOUT_S = 30.0
T = TypeVar("T")


class OutputFrame(TypedDict):
    """Announces `size` bytes of a stream, which begin at `offset`. at: when they arrived, if known."""

    kind: Literal["output"]
    attempt: str
    rank: int
    stream: str
    offset: int
    size: int
    at: float | None


class ProgressFrame(TypedDict):
    """latest: step and value of each metric. system: resource usage of the lowest rank."""

    kind: Literal["progress"]
    done: float | None
    total: float | None
    unit: str
    latest: dict[str, tuple[int, MetricValue]]
    system: api.SampleOut | None


class StateFrame(TypedDict):
    kind: Literal["state", "end"]
    run: api.RunOut


class PingFrame(TypedDict):
    kind: Literal["ping"]


Frame = OutputFrame | ProgressFrame | StateFrame | PingFrame  # a line of GET /runs/{id}/follow


class FollowListener(Protocol):
    """Receives the output and the states of a run in their order."""

    def write(self, rank: int, stream: str, data: bytes, at: float | None = None, /) -> None:
        """Receives output. at: when it arrived, in unix seconds, if known."""

    def flush(self) -> None:
        """The output of an attempt is complete."""

    def show_run(self, run: api.RunOut, /) -> None: ...

    def show_progress(self, frame: ProgressFrame, /) -> None: ...

    def notify(self, text: str, /) -> None:
        """Receives a sentence about a new attempt or the server."""


class RunFollower:
    """Follows one run. `run` and `client` are as of the newest frame and connection.

    rank: of the only replica to follow; None follows all. cursors: the output that is not sent, as
    `attempt:rank:stream` → offset.
    """

    def __init__(
        self,
        client: Client,
        run: api.RunOut,
        listener: FollowListener,
        *,
        streams: tuple[str, ...] = OUTPUT_STREAMS,
        rank: int | None = None,
        cursors: dict[str, int] | None = None,
        reconnect: Callable[[], Client | None] | None = None,
    ) -> None:
        self.client, self.run = client, run
        self._listener, self._streams, self._rank = listener, streams, rank
        self._cursors = dict(cursors or {})
        self._reconnect = reconnect or reconnect_client
        self._attempt, self._preemptions = get_attempt_number(run), run["preemptions"]
        self._start_error = ""  # why the previous attempt could not be started

    def follow(self) -> api.RunOut:
        """Returns the run when it has ended. A second call continues after an interrupt.

        Raises NotFound (deleted meanwhile), ServerUnavailable when the server died and cannot be started
        again, and what the listener raises.
        """
        self._listener.show_run(self.run)
        faults = FaultTimeout()
        while True:
            try:
                ended = self._read_frames()
                self._listener.flush()
                return ended
            except ServerUnavailable as error:
                if faults.has_expired(error):
                    raise
                self.client = self._wait_for_server()

    def _read_frames(self) -> api.RunOut:
        query = {
            "cursors": json.dumps(self._cursors, separators=(",", ":")),
            "streams": ",".join(self._streams),
            "ranks": "all" if self._rank is None else self._rank,
        }
        with self.client.open(
            "GET", f"/runs/{self.run['id']}/follow", query=query, timeout_s=_IDLE_TIMEOUT_S
        ) as response:
            while True:
                line = response.readline()
                if not line.endswith(b"\n"):
                    raise ServerUnavailable("the server ended the stream")
                frame: Frame = json.loads(line)
                data = response.read_exactly(frame["size"]) if frame["kind"] == "output" else b""
                self._apply_frame(frame, data)
                if frame["kind"] == "end":
                    return self.run

    def _apply_frame(self, frame: Frame, data: bytes) -> None:
        if frame["kind"] == "output":
            self._listener.write(frame["rank"], frame["stream"], data, frame.get("at"))
            cursor = f"{frame['attempt']}:{frame['rank']}:{frame['stream']}"
            self._cursors[cursor] = frame["offset"] + frame["size"]
        elif frame["kind"] == "progress":
            self._listener.show_progress(frame)
        elif frame["kind"] == "state" or frame["kind"] == "end":  # `in` narrows no type
            run = frame["run"]
            self._announce_attempt(run)
            attempt = run.get("attempt")
            exit_ = attempt.get("exit") if attempt else None
            if exit_ and exit_["kind"] == "node-fault":
                self._start_error = f"could not be started: {first_line(exit_['reason'])}"
            self.run = run
            self._listener.show_run(run)

    def _announce_attempt(self, run: api.RunOut) -> None:
        number = get_attempt_number(run)
        if number > self._attempt and self._attempt:
            self._listener.flush()
            end = (
                "was preempted" if run["preemptions"] > self._preemptions else self._start_error or "was lost"
            )
            self._listener.notify(
                f"attempt {number} starts {_resume_text(run)}: attempt {self._attempt} {end}"
            )
            self._start_error = ""
            self._preemptions = run["preemptions"]
        self._attempt = max(number, self._attempt)

    def _wait_for_server(self) -> Client:
        began, notified, delay = time.monotonic(), False, _FIRST_RETRY_S
        while True:
            time.sleep(delay)
            delay = min(delay * 1.5, _MAX_RETRY_S)
            client = self._reconnect()
            if client is not None:
                if notified:
                    self._listener.notify("the server is back")
                return client
            if not notified and time.monotonic() - began > _NOTICE_AFTER_S:
                notified = True
                self._listener.notify(
                    "the server is away; the run continues, and its output continues here once the server is "
                    "back (Ctrl-C detaches)"
                )


def _resume_text(run: api.RunOut) -> str:
    if run["spec"].get("study") is not None:
        return "where the study was"  # its journal holds all decisions, even without a saved state
    attempt = run.get("attempt")
    step = attempt.get("resumed_from_step") if attempt else None
    if step is not None:
        return f"from the checkpoint at step {step}"
    return "with the files that the run kept" if run.get("run_folder") else "from the beginning"


class FaultTimeout:
    """Expires after `_SERVER_FAULT_TIMEOUT_S` in which the server only answered with faults."""

    def __init__(self) -> None:
        self._since: float | None = None

    def has_expired(self, error: ServerUnavailable) -> bool:
        if not isinstance(error, ServerFault):
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since > _SERVER_FAULT_TIMEOUT_S


def call_with_retry(client: Client, call: Callable[[Client], T]) -> tuple[Client, T]:
    """Returns the result, and a client of the server that gave it. Waits for a server that goes away, as
    `reconnect_client` describes."""
    faults = FaultTimeout()
    while True:
        try:
            return client, call(client)
        except ServerUnavailable as error:
            if faults.has_expired(error):
                raise
            while (new_client := reconnect_client()) is None:
                time.sleep(_MAX_RETRY_S)
            client = new_client
            time.sleep(_FIRST_RETRY_S)


def reconnect_client() -> Client | None:
    """Returns a client of the present server; None while there is none.

    A server that crashed (`server.json` still names its process) is started again. A server that was shut
    down is waited for. Raises ServerUnavailable if the start fails.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.home import Home

    home = Home.default()
    if (home.read_server() or {}).get("pid"):
        client = connect(home=home)
    else:
        try:
            client = connect(start=False, home=home)
        except ServerUnavailable:
            return None
    return client if client.wait_ready(timeout_s=1.0) else None
