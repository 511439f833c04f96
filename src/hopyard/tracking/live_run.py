"""What a run says now: latest metrics, progress, use of the machine.
Kept in memory, written to the store now and then."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import UNSTORED, ParamValue, RunEvent, RunEventKind
from hopyard.domain.text import is_line
from hopyard.errors import Conflict
from hopyard.interfaces.run_store import MAX_UNSTORED_MESSAGES, RunStore
from hopyard.tracking.json_lines import to_int64, to_number

NAME_LIMIT = 1024  # characters of a metric's or parameter's name
NAMES_LIMIT = 10_000  # metrics, parameters … of one run that are kept in memory
TEXT_LIMIT = 16 * 1024
_MAX_TIMESTAMP = 2.0**33  # unix seconds: no clock says more
_MACHINE_ENV_LIMIT = 1000  # variables
# notices of a time limit: each is an event of the run, and an attempt has one, or few where the limit was
# changed
_MAX_LIMIT_EVENTS = 20


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """How far a loop has come; `total` is None where it is not known."""

    done: float
    total: float | None
    unit: str


@dataclass(slots=True)
class LiveRun:
    """Everything here can be made again from the streams.

    attempt: whose word it is, beside what is seen of those before it. began_at: by rank and name, the step of
    the newest point that is seen of those before it. replace_metrics: the store may know metrics that are
    seen no longer.
    """

    run: RunId
    attempt: AttemptId | None = None
    began_at: dict[int, dict[str, int]] = field(default_factory=dict)
    replace_metrics: bool = False
    latest: dict[str, tuple[int, float]] = field(default_factory=dict)
    # which replica's word on a metric counts: the lowest rank's
    ranks: dict[str, int] = field(default_factory=dict)
    progress: LoopProgress | None = None
    system: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # rank -> newest sample
    last_at: float = 0.0  # the newest time that an event named, unix seconds
    _metrics: dict[str, tuple[int, float]] = field(default_factory=dict)  # not yet in the store
    _summary: dict[str, float] = field(default_factory=dict)
    _params: dict[str, ParamValue] = field(default_factory=dict)
    _machine_env: Mapping[str, str | None] | None = None
    _unstored: list[str] = field(default_factory=list)
    _limit_event: RunEvent | None = None  # that its time limit comes soon
    _limit_count: int = 0  # how many of these came

    def apply_points(self, rank: int, newest: Mapping[str, tuple[int, float]]) -> bool:
        """Whether anything of it counts."""
        counted = False
        for name, point in newest.items():
            if self.ranks.get(name, rank) < rank or (
                name not in self.latest and len(self.latest) >= NAMES_LIMIT
            ):
                continue
            self.ranks[name] = rank
            self.latest[name] = self._metrics[name] = point
            counted = True
        return counted

    def apply_event(self, rank: int, event: Mapping[str, Any]) -> bool:
        """Take in one line of an `events` stream, whatever it holds.
        Whether it said something new about the run."""
        at = to_number(event.get("t"))
        if at is not None and math.isfinite(at):
            self.last_at = max(self.last_at, at)
        values = event.get("values")
        match event.get("kind"):
            case "params" if isinstance(values, dict) and rank == 0:
                return self._apply_params(values)
            case "environment" if isinstance(values, dict) and rank == 0:
                return self._apply_machine_env(values)
            case "summary" if isinstance(values, dict):
                return self._apply_summary(values)
            case "progress" if rank == 0:
                return self._apply_progress(event)
            case str(kind) if kind == UNSTORED:
                return self._apply_unstored(event.get("text"))
            case str(kind) if kind == RunEventKind.TIME_LIMIT and rank == 0:
                return self._apply_limit(at, event.get("text"))
        return False

    def apply_system(self, rank: int, sample: Mapping[str, Any]) -> bool:
        if to_number(sample.get("t")) is None:
            return False
        self.system[rank] = sample
        return True

    def _apply_params(self, values: Mapping[str, Any]) -> bool:
        known = {name: value for name, value in values.items() if _is_name(name) and _is_scalar(value)}
        self._params.update(list(known.items())[:NAMES_LIMIT])
        return bool(known)

    def _apply_summary(self, values: Mapping[str, Any]) -> bool:
        known = {
            name: found
            for name, value in values.items()
            if _is_name(name) and (found := to_number(value)) is not None
        }
        self._summary.update(list(known.items())[:NAMES_LIMIT])
        return bool(known)

    def _apply_progress(self, event: Mapping[str, Any]) -> bool:
        done, total, unit = to_number(event.get("done")), to_number(event.get("total")), event.get("unit")
        if done is None or not math.isfinite(done):
            return False
        told = total if total is not None and math.isfinite(total) else None
        self.progress = LoopProgress(done, told, unit[:64] if isinstance(unit, str) else "")
        return True

    def _apply_unstored(self, text: object) -> bool:
        if not isinstance(text, str) or len(self._unstored) >= MAX_UNSTORED_MESSAGES:
            return False
        self._unstored.append(_printable(text))
        return True

    def _apply_limit(self, at: float | None, text: object) -> bool:
        if (
            at is None
            or not 0 <= at < _MAX_TIMESTAMP
            or not isinstance(text, str)
            or self._limit_count >= _MAX_LIMIT_EVENTS
        ):
            return False
        self._limit_count += 1
        self._limit_event = RunEvent(
            datetime.fromtimestamp(at, UTC), RunEventKind.TIME_LIMIT, _printable(text)
        )
        return True

    def _apply_machine_env(self, values: Mapping[str, Any]) -> bool:
        known = {
            name: value
            for name, value in values.items()
            if _is_name(name) and (value is None or (isinstance(value, str) and len(value) <= TEXT_LIMIT))
        }
        self._machine_env = dict(list(known.items())[:_MACHINE_ENV_LIMIT])
        return True

    @property
    def is_dirty(self) -> bool:
        told = (
            self._metrics
            or self._summary
            or self._params
            or self._unstored
            or self._limit_event
            or self._machine_env is not None
        )
        return bool(told or self.replace_metrics)

    async def write(self, runs: RunStore) -> None:
        """Bring the store up to date. What the store refuses is kept for the next time, unless a later
        attempt began meanwhile."""
        anew, self.replace_metrics = self.replace_metrics, False
        metrics, self._metrics = self._metrics, {}
        summary, self._summary = self._summary, {}
        params, self._params = self._params, {}
        unstored, self._unstored = self._unstored, []
        limit, self._limit_event = self._limit_event, None
        machine_env, self._machine_env = self._machine_env, None
        try:
            if machine_env is not None:
                await runs.record_machine_env(self.run, machine_env, attempt=self.attempt)
            if params:
                await runs.record_params(self.run, params, attempt=self.attempt)
            if summary:
                await runs.record_summary(self.run, summary, attempt=self.attempt)
            if metrics or anew:
                await runs.record_metrics(
                    self.run, dict(self.latest) if anew else metrics, attempt=self.attempt, replace_all=anew
                )
            if unstored:
                await runs.record_unstored(self.run, unstored)
            if limit is not None:
                await runs.record_event(self.run, limit)
        except Conflict:
            return
        except BaseException:
            self.replace_metrics |= anew
            self._metrics, self._summary, self._params = (
                metrics | self._metrics,
                summary | self._summary,
                params | self._params,
            )
            self._unstored = unstored + self._unstored
            self._limit_event = self._limit_event or limit
            self._machine_env = machine_env if self._machine_env is None else self._machine_env
            raise


def parse_sample(line: Mapping[str, Any], rank: int) -> dict[str, Any] | None:
    """A line of a `system` stream in the shape that the API answers; None where it names no time."""
    at = to_number(line.get("t"))
    if at is None or not math.isfinite(at):
        return None
    listed = line.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    return {
        "t": at,
        "rank": rank,
        "cpu_percent": to_number(line.get("cpu_percent")) or 0.0,
        "memory_bytes": to_int64(line.get("memory_bytes")) or 0,
        "gpus": [
            {
                "index": to_int64(gpu.get("index")) or 0,
                "utilisation_percent": to_number(gpu.get("utilisation_percent")) or 0.0,
                "memory_bytes": to_int64(gpu.get("memory_bytes")) or 0,
            }
            for gpu in gpus
        ],
    }


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:TEXT_LIMIT])


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= NAME_LIMIT and is_line(name)


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LIMIT
    return value is None or isinstance(value, (bool, int, float))
