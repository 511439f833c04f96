"""The live state of a run: latest metrics, progress, resource usage. It is kept in memory and written to the
store periodically."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hopyard.domain.command import MAX_ANSWER, MAX_COMMANDS, CommandResult, CommandState, ParamChange
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.metric_extremes import Extremes
from hopyard.domain.metric_values import encode_param
from hopyard.domain.notification import MAX_ALERTS, Alert, AlertLevel, check_alert
from hopyard.domain.param_format import unread_sentence
from hopyard.domain.run import UNSTORED, ParamValue, RunEvent, RunEventKind
from hopyard.domain.run_values import limit_packages
from hopyard.domain.script_tags import ScriptTags
from hopyard.domain.tag_limits import MAX_NOTE, MAX_TAGS, is_tag
from hopyard.domain.text import is_line
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.notification_store import NotificationStore
from hopyard.interfaces.run_store import MAX_UNSTORED_MESSAGES, RunStore
from hopyard.tracking.json_lines import to_int64, to_number
from hopyard.tracking.latest_metrics import LatestMetrics
from hopyard.tracking.process_restarts import Restarts

NAME_LIMIT = 1024  # characters of a metric's or parameter's name
NAMES_LIMIT = 10_000  # limit of metrics, parameters … of one run in memory
TEXT_LIMIT = 16 * 1024
# of a script that has safe points: that of a loop is its progress
SAFE_POINT_EVENTS = ("safe-points", "progress")
_MAX_TIMESTAMP = 2.0**33  # unix seconds: beyond any real clock
_MACHINE_ENV_LIMIT = 1000  # variables
# notices of a time limit: each is an event of the run. An attempt has one, or a few if the limit was changed
_MAX_LIMIT_EVENTS = 20
_MAX_PROCESS_EVENTS = 2000

# of each process of the script: an attempt has more than one
_PROCESS_KINDS = (RunEventKind.RESTARTED, RunEventKind.RESUMED)


@dataclass(frozen=True, slots=True)
class LoopProgress:
    """The progress of a loop. `total` is None if it is unknown."""

    done: float
    total: float | None
    unit: str


@dataclass(slots=True)
class LiveRun:
    """The live state of a run. All of it can be rebuilt from the streams.

    attempt: the attempt that reports; visible parts of earlier attempts count as well. initial_steps: by rank
    and name, the step of the newest visible point of earlier attempts. replace_metrics: the store may have
    metrics that were rolled back. earlier: the metrics of attempts after which the script started without a
    checkpoint of Hopyard; those before the first step of this attempt remain. restarts: as in
    `VisibleStreams`. evaluated: the run that this one evaluates; it gets the same metrics. evaluations: the
    latest metrics of the runs that evaluate this one.
    """

    run: RunId
    attempt: AttemptId | None = None
    initial_steps: dict[int, dict[str, int]] = field(default_factory=dict)
    replace_metrics: bool = False
    earlier: dict[str, tuple[int, float]] = field(default_factory=dict)
    restarts: Restarts = field(default_factory=dict)
    evaluated: RunId | None = None
    evaluations: dict[str, tuple[int, float]] = field(default_factory=dict)
    first_step: int | None = None
    latest: dict[str, tuple[int, float]] = field(default_factory=dict)
    # the rank whose values count, by metric: the lowest that reports it
    ranks: dict[str, int] = field(default_factory=dict)
    has_params: bool = False  # whether the script has declared parameters
    progress: LoopProgress | None = None
    system: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # rank -> newest sample
    last_at: float = 0.0  # the newest time of an event, unix seconds
    _metrics: dict[str, tuple[int, float]] = field(default_factory=dict)  # not yet in the store
    # by metric. After another attempt they are unknown, since a part of its points may be hidden
    _extremes: dict[str, Extremes] = field(default_factory=dict)
    _summary: dict[str, float] = field(default_factory=dict)
    _params: dict[str, ParamValue] = field(default_factory=dict)
    _tags: dict[str, str | None] = field(default_factory=dict)
    _note: str | None = None
    _machine_env: Mapping[str, str | None] | None = None
    _packages: Mapping[str, str] | None = None
    _unstored: list[str] = field(default_factory=list)
    _limit_event: RunEvent | None = None  # the run will soon reach its time limit
    _unread_event: RunEvent | None = None  # parameters that nothing read
    _process_events: list[RunEvent] = field(default_factory=list)
    _process_event_count: int = 0  # how many were received
    # sentences of the replica: values that are no numbers
    _sentences: dict[RunEventKind, RunEvent] = field(default_factory=dict)
    # of commands, by the attempt that applied them and their number; not yet in the store
    answers: dict[tuple[AttemptId, int], CommandResult] = field(default_factory=dict)
    # the attempts with a script that has reached its first safe point
    safe_points_of: set[AttemptId] = field(default_factory=set)
    _limit_count: int = 0  # how many of these events were received
    _alerts: dict[str, Alert] = field(default_factory=dict)  # by their key; not yet in the store
    _stored_alerts: set[str] = field(default_factory=set)
    _write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def apply_points(
        self, rank: int, reader: LatestMetrics, data: bytes, *, logged: Collection[str] = ()
    ) -> bool:
        """Applies the points in new bytes of a metric stream. Returns whether any of them counts.

        logged: names that the replica logged with `hop.log`, for another stream; its points of these names
        do not count.
        """
        newest = reader.feed(data)
        extremes = reader.extremes() if self._has_one_attempt else {}
        changed = False
        first_step = reader.first_step
        if first_step is not None and (self.first_step is None or first_step < self.first_step):
            self.first_step = first_step
        for name, point in newest.items():
            if (
                name in logged
                or self.ranks.get(name, rank) < rank
                or (name not in self.latest and len(self.latest) >= NAMES_LIMIT)
            ):
                continue
            if self.ranks.get(name) != rank:
                self._extremes.pop(name, None)
            self.ranks[name] = rank
            if name in extremes:
                self._extremes[name] = extremes[name]
            self.latest[name] = self._metrics[name] = point
            changed = True
        return changed

    def forget_points(self, rank: int) -> set[str]:
        """Forgets the metrics of a replica before they are read again, as a part of them is hidden now.
        Returns their names."""
        names = {name for name, each in self.ranks.items() if each == rank}
        for name in names:
            del self.ranks[name], self.latest[name]
            self._metrics.pop(name, None)
        self._extremes.clear()
        return names

    def replace_points(self, names: Collection[str], readers: Iterable[tuple[int, LatestMetrics]]) -> None:
        """Takes the values of forgotten metrics from other replicas, and replaces all metrics in the store.
        readers: by rank, the lowest first."""
        for rank, reader in readers:
            for name, point in reader.latest.items():
                if name in names and name not in self.latest:
                    self.ranks[name], self.latest[name] = rank, point
        self.replace_metrics = True

    def apply_event(self, rank: int, event: Mapping[str, Any]) -> bool:
        """Applies one line of an `events` stream, which may contain anything. Returns whether it changed the
        state."""
        at = to_number(event.get("t"))
        if at is not None and math.isfinite(at):
            self.last_at = max(self.last_at, at)
        values = event.get("values")
        match event.get("kind"):
            # scaled: effective values beside the given ones, under other names
            case "params" | "scaled" if isinstance(values, dict) and rank == 0:
                return self._apply_params(values)
            case "tags" if isinstance(values, dict) and rank == 0:
                return self._apply_tags(values, event.get("note"))
            case "environment" if isinstance(values, dict) and rank == 0:
                return self._apply_machine_env(values)
            case "packages" if isinstance(values, dict) and rank == 0:
                return self._apply_packages(values)
            case "summary" if isinstance(values, dict):
                return self._apply_summary(values)
            case "progress" if rank == 0:
                return self._apply_progress(event)
            case str(kind) if kind == RunEventKind.ALERT:
                return self._apply_alert(at, event)
            case str(kind) if kind == UNSTORED:
                return self._apply_unstored(event.get("text"))
            case str(kind) if kind == RunEventKind.TIME_LIMIT and rank == 0:
                return self._apply_limit(at, event.get("text"))
            case str(kind) if kind in _PROCESS_KINDS:
                return self._apply_process(RunEventKind(kind), at, event.get("text"))
            case str(kind) if kind == RunEventKind.MEDIA and rank == 0:
                return self._apply_sentence(RunEventKind.MEDIA, at, event.get("text"))
            case str(kind) if kind == RunEventKind.UNREAD_PARAMS and rank == 0:
                return self._apply_unread(at, event.get("names"))
        return False

    def apply_command_result(self, attempt: AttemptId, event: Mapping[str, Any]) -> bool:
        """Applies the answer of an attempt to a command, a line of kind `command` of its `events` stream."""
        number, step = to_int64(event.get("number")), to_int64(event.get("step"))
        seconds = to_number(event.get("t"))
        state, text = event.get("state"), event.get("answer")
        if (
            number is None
            or not 1 <= number <= MAX_COMMANDS
            or step is None
            or seconds is None
            or not 0 <= seconds < _MAX_TIMESTAMP
            or state not in (CommandState.APPLIED, CommandState.REFUSED)
            or not isinstance(text, str)
        ):
            return False
        changes = _param_changes(event.get("changes"))
        self.answers[attempt, number] = CommandResult(
            CommandState(state),
            step,
            _printable(text)[:MAX_ANSWER],
            # as that of checkpoints: the clock of the node may be ahead
            min(datetime.fromtimestamp(seconds, UTC), datetime.now(UTC)),
            changes,
        )
        # rank 0, which reports the parameters, may have no safe points
        self._params |= {name: after for name, (_, after) in changes.items()}
        return True

    def apply_system(self, rank: int, sample: Mapping[str, Any]) -> bool:
        if to_number(sample.get("t")) is None:
            return False
        self.system[rank] = sample
        return True

    def _apply_params(self, values: Mapping[str, Any]) -> bool:
        valid = {
            name: encode_param(value)
            for name, value in values.items()
            if _is_name(name) and _is_scalar(value)
        }
        self._params.update(list(valid.items())[:NAMES_LIMIT])
        self.has_params |= bool(valid)
        return bool(valid)

    def _apply_tags(self, values: Mapping[str, Any], note: object) -> bool:
        valid = {
            name: value for name, value in values.items() if is_tag(name, "" if value is None else value)
        }
        self._tags.update(list(valid.items())[:MAX_TAGS])
        while len(self._tags) > MAX_TAGS:
            self._tags.popitem()
        if isinstance(note, str) and "\0" not in note:
            self._note = note[:MAX_NOTE]
        return bool(valid) or isinstance(note, str)

    def _apply_summary(self, values: Mapping[str, Any]) -> bool:
        valid = {
            name: number
            for name, value in values.items()
            if _is_name(name) and (number := to_number(value)) is not None
        }
        self._summary.update(list(valid.items())[:NAMES_LIMIT])
        return bool(valid)

    def _apply_progress(self, event: Mapping[str, Any]) -> bool:
        done, total, unit = to_number(event.get("done")), to_number(event.get("total")), event.get("unit")
        if done is None or not math.isfinite(done):
            return False
        finite_total = total if total is not None and math.isfinite(total) else None
        self.progress = LoopProgress(done, finite_total, unit[:64] if isinstance(unit, str) else "")
        return True

    def _apply_unstored(self, text: object) -> bool:
        if not isinstance(text, str) or len(self._unstored) >= MAX_UNSTORED_MESSAGES:
            return False
        self._unstored.append(_printable(text))
        return True

    def _apply_alert(self, at: float | None, event: Mapping[str, Any]) -> bool:
        text, title, level = event.get("text"), event.get("title", ""), event.get("level")
        if (
            at is None
            or not 0 <= at < _MAX_TIMESTAMP
            or not isinstance(text, str)
            or not isinstance(title, str)
            or not isinstance(level, str)
        ):
            return False
        try:
            text, title = check_alert(text, title, level)
        except SpecError:
            return False
        alert = Alert(text, datetime.fromtimestamp(at, UTC), title, AlertLevel(level))
        key = alert.key(self.attempt)
        if key in self._stored_alerts or len(self._stored_alerts) + len(self._alerts) >= MAX_ALERTS:
            return False
        self._alerts.setdefault(key, alert)
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

    def _apply_process(self, kind: RunEventKind, at: float | None, text: object) -> bool:
        if (
            at is None
            or not 0 <= at < _MAX_TIMESTAMP
            or not isinstance(text, str)
            or self._process_event_count >= _MAX_PROCESS_EVENTS
        ):
            return False
        self._process_event_count += 1
        self._process_events.append(RunEvent(datetime.fromtimestamp(at, UTC), kind, _printable(text)))
        return True

    def _apply_sentence(self, kind: RunEventKind, at: float | None, text: object) -> bool:
        if not isinstance(text, str) or at is None or not 0 <= at < _MAX_TIMESTAMP or kind in self._sentences:
            return False
        self._sentences[kind] = RunEvent(datetime.fromtimestamp(at, UTC), kind, _printable(text))
        return True

    def _apply_unread(self, at: float | None, names: object) -> bool:
        if not isinstance(names, list) or at is None or not 0 <= at < _MAX_TIMESTAMP or self._unread_event:
            return False
        valid = [name for name in names if _is_name(name)][:_MACHINE_ENV_LIMIT]
        if valid:
            self._unread_event = RunEvent(
                datetime.fromtimestamp(at, UTC),
                RunEventKind.UNREAD_PARAMS,
                unread_sentence(valid)[:TEXT_LIMIT],
            )
        return bool(valid)

    def _apply_machine_env(self, values: Mapping[str, Any]) -> bool:
        valid = {
            name: value
            for name, value in values.items()
            if _is_name(name) and (value is None or (isinstance(value, str) and len(value) <= TEXT_LIMIT))
        }
        self._machine_env = dict(list(valid.items())[:_MACHINE_ENV_LIMIT])
        return True

    def _apply_packages(self, values: Mapping[str, Any]) -> bool:
        valid = {name: text for name, text in values.items() if _is_name(name) and _is_name(text)}
        self._packages = limit_packages(valid)
        return True

    @property
    def _has_one_attempt(self) -> bool:
        return self.attempt is not None and split_attempt(self.attempt)[1] == 1 and not self.restarts

    @property
    def is_dirty(self) -> bool:
        pending = (
            self._metrics
            or self._summary
            or self._params
            or self._tags
            or self._note is not None
            or self._unstored
            or self.answers
            or self._alerts
            or self._limit_event
            or self._unread_event
            or self._process_events
            or self._sentences
            or self._machine_env is not None
            or self._packages is not None
        )
        return bool(pending or self._is_replacing)

    @property
    def _is_replacing(self) -> bool:
        """Whether the metrics in the store are to be replaced. Those of an attempt of which the script may
        continue its own checkpoint remain until the first point."""
        return self.replace_metrics and bool(self.latest or not self.earlier)

    def _all_metrics(self) -> dict[str, tuple[int, float]]:
        first = self.first_step
        kept = {name: point for name, point in self.earlier.items() if first is None or point[0] < first}
        return kept | self.latest | self.evaluations

    async def write(
        self,
        runs: RunStore,
        commands: CommandStore | None = None,
        notifications: NotificationStore | None = None,
    ) -> None:
        """Writes changes to the stores. After an error they are kept for the next time, unless a later
        attempt has begun. Returns after the end of a write that has begun before, which has taken changes."""
        async with self._write_lock:
            await self._write(runs, commands, notifications)

    async def _write(
        self, runs: RunStore, commands: CommandStore | None, notifications: NotificationStore | None
    ) -> None:
        replace_all = self._is_replacing
        self.replace_metrics &= not replace_all
        metrics, self._metrics = self._metrics, {}
        summary, self._summary = self._summary, {}
        params, self._params = self._params, {}
        tags, self._tags = self._tags, {}
        note, self._note = self._note, None
        unstored, self._unstored = self._unstored, []
        answers, self.answers = self.answers, {}
        alerts, self._alerts = self._alerts, {}
        limit_event, self._limit_event = self._limit_event, None
        unread_event, self._unread_event = self._unread_event, None
        process_events, self._process_events = self._process_events, []
        sentences, self._sentences = self._sentences, {}
        machine_env, self._machine_env = self._machine_env, None
        packages, self._packages = self._packages, None
        try:
            if machine_env is not None:
                await runs.record_machine_env(self.run, machine_env, attempt=self.attempt)
            if packages is not None:
                await runs.record_packages(self.run, packages, attempt=self.attempt)
            if params:
                await runs.record_params(self.run, params, attempt=self.attempt)
            if tags or note is not None:
                await runs.record_tags(self.run, ScriptTags(tags, note), attempt=self.attempt)
            if summary:
                await runs.record_summary(self.run, summary, attempt=self.attempt)
            if metrics or replace_all:
                written = self._all_metrics() if replace_all else metrics
                await runs.record_metrics(
                    self.run,
                    written,
                    extremes={name: self._extremes[name] for name in written if name in self._extremes},
                    attempt=self.attempt,
                    replace_all=replace_all,
                )
            if metrics and self.evaluated is not None:
                with suppress(NotFound):  # removed
                    await runs.record_metrics(self.evaluated, metrics)
            if unstored:
                await runs.record_unstored(self.run, unstored)
            if limit_event is not None:
                await runs.record_event(self.run, limit_event)
            if unread_event is not None:
                await runs.record_event(self.run, unread_event)
            for event in process_events:
                await runs.record_event(self.run, event)
            if notifications is not None:
                for alert in alerts.values():
                    now = min(alert.at, datetime.now(UTC))  # the clock of the node may be ahead
                    await notifications.record_alert(self.run, alert, attempt=self.attempt, now=now)
                self._stored_alerts.update(alerts)
            for sentence in sentences.values():
                await runs.record_event(self.run, sentence)
            if commands is not None:
                for (attempt, number), answer in answers.items():
                    await commands.record_command_result(self.run, number, answer, attempt=attempt)
        except Conflict:
            return
        except BaseException:
            self.replace_metrics |= replace_all
            self._metrics, self._summary, self._params = (
                metrics | self._metrics,
                summary | self._summary,
                params | self._params,
            )
            self._tags, self._note = tags | self._tags, note if self._note is None else self._note
            self._unstored = unstored + self._unstored
            self.answers = answers | self.answers
            self._alerts = alerts | self._alerts
            self._limit_event = self._limit_event or limit_event
            self._unread_event = self._unread_event or unread_event
            self._process_events = process_events + self._process_events
            self._sentences = sentences | self._sentences
            self._machine_env = machine_env if self._machine_env is None else self._machine_env
            self._packages = packages if self._packages is None else self._packages
            raise


def _param_changes(changes: object) -> dict[str, ParamChange]:
    if not isinstance(changes, dict):
        return {}
    return {
        name: (encode_param(change[0]), encode_param(change[1]))
        for name, change in list(changes.items())[:NAMES_LIMIT]
        if _is_name(name) and isinstance(change, list) and len(change) == 2 and all(map(_is_scalar, change))
    }


def parse_sample(line: Mapping[str, Any], rank: int) -> dict[str, Any] | None:
    """Returns a line of a `system` stream as the API returns it; None if it has no time."""
    at = to_number(line.get("t"))
    if at is None or not math.isfinite(at):
        return None
    values = line.get("gpus")
    gpus = [gpu for gpu in values if isinstance(gpu, dict)] if isinstance(values, list) else []
    return {
        "t": at,
        "rank": rank,
        "cpu_percent": to_number(line.get("cpu_percent")) or 0.0,
        "memory_bytes": to_int64(line.get("memory_bytes")) or 0,
        "read_bytes_per_s": to_number(line.get("read_bytes_per_s")),
        "write_bytes_per_s": to_number(line.get("write_bytes_per_s")),
        "host_received_bytes_per_s": to_number(line.get("host_received_bytes_per_s")),
        "host_sent_bytes_per_s": to_number(line.get("host_sent_bytes_per_s")),
        "gpus": [
            {
                "index": to_int64(gpu.get("index")) or 0,
                "utilisation_percent": to_number(gpu.get("utilisation_percent")) or 0.0,
                "memory_bytes": to_int64(gpu.get("memory_bytes")) or 0,
                "temperature_celsius": to_number(gpu.get("temperature_celsius")),
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
