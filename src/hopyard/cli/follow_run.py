"""Follows a run until it has ended, over lost connections and restarted servers, without losing or doubling a
byte."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hopyard.api_client.client import Client
from hopyard.cli.run_output import RunOutput
from hopyard.cli.run_text import Run, first_line
from hopyard.cli.status_line import StatusLine
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.errors import ServerFault, ServerUnavailable

_IDLE_TIMEOUT_S = 45.0  # the server pings every 15 s
_FIRST_RETRY_S, _MAX_RETRY_S, _NOTICE_AFTER_S = 0.05, 1.0, 1.0
_SERVER_FAULT_TIMEOUT_S = 30.0
T = TypeVar("T")


class RunFollower:
    """cursors: what of the streams is not wanted again, as `attempt:rank:stream` → offset."""

    def __init__(
        self,
        client: Client,
        run: Run,
        *,
        output: RunOutput,
        line: StatusLine,
        streams: tuple[str, ...] = OUTPUT_STREAMS,
        rank: int | None = None,
        cursors: dict[str, int] | None = None,
        reconnect: Callable[[], Client | None] | None = None,
    ) -> None:
        self.client, self.run = client, run
        self._output, self._line, self._streams, self._rank = output, line, streams, rank
        self._cursors = dict(cursors or {})
        self._reconnect = reconnect or reconnect_client
        self._attempt, self._preemptions = _attempt_number(run), int(run["preemptions"])
        self._start_error = ""  # why the attempt before could not be started

    def follow(self) -> Run:
        """Write what comes until the run is final; the run as it ended. Raises OutputGone, NotFound (removed
        meanwhile), ServerUnavailable when the server died and cannot be started again."""
        self._line.show_run(self.run)
        self._line.start()
        faults = _FaultTimeout()
        while True:
            try:
                ended = self._read()
                self._output.flush()
                return ended
            except ServerUnavailable as failed:
                if faults.has_expired(failed):
                    raise
                self.client = self._wait_for_server()

    def _read(self) -> Run:
        query = {
            "cursors": json.dumps(self._cursors, separators=(",", ":")),
            "streams": ",".join(self._streams),
            "ranks": "all" if self._rank is None else self._rank,
        }
        with self.client.open(
            "GET", f"/runs/{self.run['id']}/follow", query=query, timeout_s=_IDLE_TIMEOUT_S
        ) as response:
            while True:
                head = response.readline()
                if not head.endswith(b"\n"):
                    raise ServerUnavailable("the server ended the stream")
                frame = json.loads(head)
                data = response.read_exactly(frame["size"]) if frame["kind"] == "output" else b""
                if self._apply_frame(frame, data):
                    return self.run

    def _apply_frame(self, frame: dict[str, Any], data: bytes) -> bool:
        """Act on one frame; whether it was the last."""
        kind = frame["kind"]
        if kind == "output":
            self._output.write(frame["rank"], frame["stream"], data)
            self._cursors[f"{frame['attempt']}:{frame['rank']}:{frame['stream']}"] = (
                frame["offset"] + frame["size"]
            )
        elif kind == "progress":
            self._line.show_progress(frame)
        elif kind in ("state", "end"):
            self._announce_attempt(frame["run"])
            ended = (frame["run"].get("attempt") or {}).get("exit")
            if ended and ended["kind"] == "node-fault":
                self._start_error = f"could not be started: {first_line(ended['reason'])}"
            self.run = frame["run"]
            self._line.show_run(self.run)
        return bool(kind == "end")

    def _announce_attempt(self, run: Run) -> None:
        number = _attempt_number(run)
        if number > self._attempt and self._attempt:
            self._output.flush()
            step = (run.get("attempt") or {}).get("resumed_from_step")
            origin = f"from the checkpoint at step {step}" if step is not None else "from the beginning"
            # what it decided stands in its journal, whether a state was saved or not
            if run["spec"].get("study") is not None:
                origin = "where the study was"
            before = (
                "made room" if run["preemptions"] > self._preemptions else self._start_error or "was lost"
            )
            self._line.print_above(f"attempt {number} starts {origin}: the one before {before}")
            self._start_error = ""
            self._preemptions = run["preemptions"]
        self._attempt = max(number, self._attempt)

    def _wait_for_server(self) -> Client:
        began, told, delay = time.monotonic(), False, _FIRST_RETRY_S
        while True:
            time.sleep(delay)
            delay = min(delay * 1.5, _MAX_RETRY_S)
            client = self._reconnect()
            if client is not None:
                if told:
                    self._line.print_above("the server is back")
                return client
            if not told and time.monotonic() - began > _NOTICE_AFTER_S:
                told = True
                self._line.print_above(
                    "the server is away; the run goes on, and so does this as soon as it is back "
                    "(Ctrl-C leaves)"
                )


class _FaultTimeout:
    """Of a server that answers: after `_SERVER_FAULT_TIMEOUT_S` of nothing else there is no use in asking
    again."""

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
    """The answer, and a client of the server that gave it: one that goes away meanwhile is waited for as
    `find_again` says."""
    faults = _FaultTimeout()
    while True:
        try:
            return client, call(client)
        except ServerUnavailable as failed:
            if faults.has_expired(failed):
                raise
            while (found := reconnect_client()) is None:
                time.sleep(_MAX_RETRY_S)
            client = found
            time.sleep(_FIRST_RETRY_S)


def reconnect_client() -> Client | None:
    """A client of the server that there is now, None while there is none. One that crashed (`server.json`
    still names its process) is started again: raises ServerUnavailable when that fails. One that was shut
    down is waited for."""
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


def _attempt_number(run: Run) -> int:
    return int((run.get("attempt") or {}).get("number") or 0)
