"""Parses the events stream of a trial's run: the parameters that the script takes, and the positions of its
outermost `hop.loop`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.run import RunEventKind


@dataclass(frozen=True, slots=True)
class LoopProgressEvent:
    """`done` of `total` iterations were complete at this time (unix seconds)."""

    time: float
    done: int
    total: int


@dataclass(slots=True)
class RunEvents:
    """The events of one attempt.

    declared: the names of the parameters that the script takes, from `hop.params`; None while it has taken
    none. unread: names that no process of the run has read; reported at its end. positions: since
    the last call of `take_positions`.
    """

    declared: set[str] | None = None
    unread: set[str] = field(default_factory=set)
    _positions: list[LoopProgressEvent] = field(default_factory=list)
    _remainder: bytes = b""

    def parse(self, data: bytes) -> None:
        """Parses the next bytes of the stream. Other lines than events have no effect."""
        *lines, self._remainder = (self._remainder + data).split(b"\n")
        for event in filter(None, map(_read_event, lines)):
            values = event.get("values")
            if event.get("kind") == "params" and isinstance(values, dict):
                self.declared = {*(self.declared or ()), *map(str, values)}
            elif event.get("kind") == RunEventKind.UNREAD_PARAMS and isinstance(event.get("names"), list):
                self.unread.update(map(str, event["names"]))
            elif event.get("kind") == "progress":
                self._positions += _read_position(event)

    def take_positions(self) -> list[LoopProgressEvent]:
        positions, self._positions = self._positions, []
        return positions


def _read_event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _read_position(event: dict[str, Any]) -> Iterator[LoopProgressEvent]:
    at, done, total = event.get("t"), event.get("done"), event.get("total")
    if isinstance(at, (int, float)) and isinstance(done, int) and isinstance(total, int):
        yield LoopProgressEvent(float(at), done, total)
