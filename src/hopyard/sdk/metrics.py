"""`hop.log`: metric points into the local stream, in one or two microseconds, whatever the network does."""

from __future__ import annotations

import math
import operator
import os
import struct
import time
from collections.abc import Callable, Mapping
from typing import Protocol, SupportsFloat, SupportsIndex

from hopyard.domain.points import NO_STEP, POINT, pack_definition, pack_point, series_of, whole_bytes
from hopyard.errors import SpecError
from hopyard.sdk.streams import StreamFile


class HasItem(Protocol):
    """A scalar of an array library: a tensor or array of one element."""

    def item(self) -> object: ...


Number = SupportsFloat | SupportsIndex | HasItem  # what may be logged


class MetricStream:
    """The `metrics` stream of one process, and the latest value of each metric that it logged."""

    __slots__ = ("_file", "_first", "_known", "_on_new", "counts", "latest")

    def __init__(self, path: str, on_new: Callable[[], None] = lambda: None) -> None:
        """on_new: called when this process names a metric that it has not named before."""
        self._on_new = on_new
        self._file = StreamFile(path, whole=whole_bytes)
        self._known: dict[str, int] = {}
        self.latest: dict[str, float] = {}
        self.counts: dict[str, int] = {}  # points of each metric that were logged without a step
        # the steps of the next such points, where the streams of this run do not tell them
        self._first: dict[str, int] = {}

    def write(self, step: SupportsIndex | None, metrics: Mapping[str, Number]) -> None:
        """Append the points as one write; on a full disk as many as fit.
        Raises SpecError for a value that is no number."""
        # Every nanosecond here is paid by users' loops: no helper is called for a known metric with a float
        # value.
        now = time.time()
        if step is None:
            counts = self.counts
            for name in metrics:
                counts[name] = counts.get(name, 0) + 1
            if self._first and not self._first.keys().isdisjoint(metrics):
                for name, value in metrics.items():
                    self._write_slowly(self._first.pop(name, NO_STEP), now, {name: value})
                return
            at = NO_STEP
        elif type(step) is int:
            at = step
        else:
            at = as_step(step)
        known, latest, parts = self._known, self.latest, []
        try:
            for name, value in metrics.items():
                number = value if type(value) is float else as_number(name, value)
                parts.append(pack_point(POINT, known[name], at, now, number))
                latest[name] = number
        except (KeyError, struct.error):
            self._write_slowly(at, now, metrics)
            return
        data = b"".join(parts)
        try:
            written = os.write(self._file.descriptor, data)
        except OSError as broken:
            self._file.trouble(broken)
            return
        if written != len(data):
            self._file.mend(data[:written])

    def _write_slowly(self, at: int, now: float, metrics: Mapping[str, Number]) -> None:
        """As `write`, with the definitions of the series that this process has not yet named."""
        if not NO_STEP <= at < 2**63:
            raise SpecError(
                f"hop.log: step {at} is out of range", hints=("a step is a whole number of at most 63 bits",)
            )
        parts: list[bytes] = []
        fresh: dict[str, int] = {}
        for name, value in metrics.items():
            number = as_number(name, value)
            if name not in self._known:
                parts.append(_define(name))
                fresh[name] = series_of(name)
            parts.append(pack_point(POINT, fresh.get(name) or self._known[name], at, now, number))
            self.latest[name] = number
        self._on_new()
        if self._file.append(b"".join(parts)):
            self._known.update(fresh)

    def go_on(self, counts: Mapping[str, int], *, of_other_run: bool) -> None:
        """Count on from those of a checkpoint. of_other_run: what it counted is not in the streams of this
        run, where readers look."""
        self.counts = dict(counts)
        self._first = {**counts} if of_other_run else {}

    def forget_definitions(self) -> None:
        """Name every series anew: after a fork, because each process does that for itself."""
        self._known.clear()

    def close(self) -> None:
        self._file.close()


def as_number(name: str, value: object) -> float:
    """`value` as a float. Raises SpecError unless it is one number: a float, an int, a tensor or array of one
    element."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str | bytes | complex) or value is None:
        raise _not_a_number(name, value)
    item = getattr(value, "item", None)
    try:
        found = item() if callable(item) else value
        if isinstance(found, str | bytes | complex) or found is None:
            raise _not_a_number(name, value)
        return float(found)  # type: ignore[arg-type]  # whatever it is, float() decides
    except (TypeError, ValueError, RuntimeError) as bad:
        raise _not_a_number(name, value) from bad


def as_step(step: object) -> int:
    """`step` as an int. Raises SpecError for anything that is not a whole number."""
    try:
        return operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        pass
    number = as_number("step", step)
    if not number.is_integer():
        raise SpecError(f"hop.log: step is {number}", hints=("a step is a whole number",))
    return int(number)


def _not_a_number(name: str, value: object) -> SpecError:
    shape = getattr(value, "shape", None)
    what = (
        f"{type(value).__name__} of shape {tuple(shape)}"
        if isinstance(shape, tuple)
        else f"{type(value).__name__} {value!r:.60}"
    )
    return SpecError(
        f"`{name}` is a {what}, not a number",
        hints=("a metric is one number: a float, an int, or a tensor of one element",),
    )


def _define(name: object) -> bytes:
    if not isinstance(name, str):
        raise SpecError(f"a metric's name is text, not {name!r:.60}")
    try:
        return pack_definition(name)
    except ValueError as bad:
        raise SpecError(f"`{name[:60]}` cannot name a metric: {bad}") from bad
