"""`hop.log`: appends metric points to the local stream in one or two microseconds, independent of the
network.
"""

from __future__ import annotations

import math
import operator
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, SupportsFloat, SupportsIndex

from hopyard.domain.metric_records import (
    NO_STEP,
    POINT,
    complete_bytes,
    pack_definition,
    pack_point,
    series_id,
)
from hopyard.errors import SpecError
from hopyard.sdk.media import Media, to_media_list
from hopyard.sdk.streams import StreamFile
from hopyard.sdk.warn_once import warn_once


class ScalarTensor(Protocol):
    """A scalar of an array library: a tensor or array of one element."""

    def item(self) -> object: ...


if sys.version_info >= (3, 10):
    Number = SupportsFloat | SupportsIndex | ScalarTensor  # what a metric may be
    Loggable = Number | Media | Sequence[Media]  # what may be logged
else:  # annotations, which name them, are not evaluated
    Number = Loggable = object
_MEDIA_OF_LIBRARIES = {"PIL": "Image", "matplotlib": "Figure", "pandas": "Table"}  # by package of the value
_MEDIA_HINT = "log it as "
MediaWriter = Callable[[int, str, Sequence[Media]], None]  # receives step, name and media


class MetricStream:
    """The `metrics` stream of one process, and the latest value of each metric that it logged."""

    __slots__ = (
        "_defined_series",
        "_file",
        "_first_write",
        "_on_new_series",
        "_write_media",
        "default_step",
        "latest",
        "metric_counts",
    )

    def __init__(
        self,
        path: str,
        on_new: Callable[[], None] = lambda: None,
        write_media: MediaWriter = lambda *_: None,
    ) -> None:
        """on_new: called when this process logs a metric for the first time. write_media: called for values
        that are media."""
        self._on_new_series, self._write_media = on_new, write_media
        self._file = StreamFile(path, complete_bytes=complete_bytes)
        self._defined_series: dict[str, int] = {}
        self.default_step: int | None = None  # of points that are logged without a step
        self.latest: dict[str, float] = {}
        self.metric_counts: dict[str, int] = {}  # points of each metric logged without a step
        # the step of the next such point, if it does not follow from the streams of this run
        self._first_write: dict[str, int] = {}

    def write(self, step: SupportsIndex | None, metrics: Mapping[str, Loggable]) -> None:
        """Appends the points as one write; on a full disk as many as fit. A value that is neither a number
        nor media is reported once and skipped. Raises SpecError for an invalid step.
        """
        # This runs inside users' loops: no function is called for a defined metric with a float value.
        now = time.time()
        if step is None and self.default_step is not None:
            step = self.default_step
        if step is None:
            counts = self.metric_counts
            for name in metrics:
                counts[name] = counts.get(name, 0) + 1
            if self._first_write and not self._first_write.keys().isdisjoint(metrics):
                for name, value in metrics.items():
                    first = self._first_write.pop(name, NO_STEP)
                    is_written = self._write_with_definitions(first, now, {name: value}, is_counted=True)
                    if not is_written and first != NO_STEP:
                        self._first_write[name] = first
                return
            point_step = NO_STEP
        elif type(step) is int:
            point_step = step
        else:
            point_step = to_step(step)
        defined, latest, parts = self._defined_series, self.latest, []
        try:
            for name, value in metrics.items():
                number = value if type(value) is float else to_float(name, value)
                parts.append(pack_point(POINT, defined[name], point_step, now, number))
                latest[name] = number
        except (KeyError, struct.error, SpecError):
            self._write_with_definitions(point_step, now, metrics, is_counted=step is None)
            return
        data = b"".join(parts)
        try:
            written = os.write(self._file.descriptor, data)
        except OSError as error:
            self._file.full_disk_error(error)
            return
        if written != len(data):
            self._file.truncate_partial_record(data[:written])

    def _write_with_definitions(
        self, point_step: int, now: float, metrics: Mapping[str, Loggable], *, is_counted: bool
    ) -> bool:
        """Writes as `write` does, with definitions for the series that this process has not defined yet.

        Returns False if nothing is left: a value that is not a number is skipped. is_counted: the points are
        in `metric_counts` already.
        """
        if not NO_STEP <= point_step < 2**63:
            raise SpecError(
                f"hop.log: step {point_step} is out of range",
                hints=("a step is a whole number of at most 63 bits",),
            )
        parts: list[bytes] = []
        new_series: dict[str, int] = {}
        has_media = False
        for name, value in metrics.items():
            media = to_media_list(value)
            if media is not None:
                has_media = True
                step = self.metric_counts[name] - 1 if point_step == NO_STEP else point_step
                self._write_media(step, name, media)
                continue
            try:
                number = to_float(name, value)
                if name not in self._defined_series and name not in new_series:
                    parts.append(_definition_record(name))
                    new_series[name] = series_id(name)
            except SpecError as error:
                warn_skipped("hop.log", name, error)
                if is_counted:
                    self.metric_counts[name] -= 1
                continue
            parts.append(
                pack_point(POINT, new_series.get(name) or self._defined_series[name], point_step, now, number)
            )
            self.latest[name] = number
        if not parts:
            return has_media
        self._on_new_series()
        if self._file.append(b"".join(parts)):
            self._defined_series.update(new_series)
        return True

    def continue_counts(self, counts: Mapping[str, int], *, is_other_run: bool) -> None:
        """Continues the counts of a checkpoint. is_other_run: the counted points are not in the streams of
        this run, where readers look.
        """
        self.metric_counts = dict(counts)
        self._first_write = {**counts} if is_other_run else {}

    def reset_definitions(self) -> None:
        """Forgets which series are defined. After a fork each process writes its own definitions."""
        self._defined_series.clear()

    def close(self) -> None:
        self._file.close()


def to_float(name: str, value: object) -> float:
    """Returns `value` as a float. Raises SpecError unless it is one number: a float, an int, a tensor or
    array of one element.
    """
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, (str, bytes, complex)) or value is None:
        raise _number_error(name, value)
    item = getattr(value, "item", None)
    try:
        scalar = item() if callable(item) else value
        if isinstance(scalar, (str, bytes, complex)) or scalar is None:
            raise _number_error(name, value)
        return float(scalar)  # type: ignore[arg-type]  # float() raises for an unsuitable type
    except (TypeError, ValueError, RuntimeError) as error:
        raise _number_error(name, value) from error


def to_numbers(values: Mapping[str, object], *, function: str) -> dict[str, float]:
    """Returns the values as floats. Reports each one that is not a number once, and leaves it out.
    function: which takes the values, for the report."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[name] = to_float(name, value)
        except SpecError as error:
            warn_skipped(function, name, error)
    return numbers


def warn_skipped(function: str, name: object, error: SpecError) -> None:
    """Prints why `function` leaves a value out, once for each name."""
    reason = error.message.encode("utf-8", "backslashreplace").decode()
    hint = next((f" ({hint})" for hint in error.hints if hint.startswith(_MEDIA_HINT)), "")
    warn_once(f"{function}: {reason}; it is skipped{hint}", kind=f"skipped-{name!r:.80}")


def to_step(step: object) -> int:
    """Returns `step` as an int. Raises SpecError if it is not a whole number."""
    try:
        return operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        pass
    number = to_float("step", step)
    if not number.is_integer():
        raise SpecError(f"hop.log: step is {number}", hints=("a step is a whole number",))
    return int(number)


def _number_error(name: str, value: object) -> SpecError:
    shape = getattr(value, "shape", None)
    description = (
        f"{type(value).__name__} of shape {tuple(shape)}"
        if isinstance(shape, tuple)
        else f"{type(value).__name__} {value!r:.60}"
    )
    module = type(value).__module__.partition(".")[0]
    media = _MEDIA_OF_LIBRARIES.get(module) or ("Text" if isinstance(value, str) else "")
    hint = f"{_MEDIA_HINT}hop.{media}({name})" if media else ""
    return SpecError(
        f"`{name}` is a {description}, not a number",
        hints=(hint or "a metric is one number: a float, an int, or a tensor of one element",),
    )


def _definition_record(name: object) -> bytes:
    if not isinstance(name, str):
        raise SpecError(f"a metric's name is text, not {name!r:.60}")
    try:
        return pack_definition(name)
    except ValueError as error:
        raise SpecError(f"`{name[:60]}` cannot name a metric: {error}") from error
