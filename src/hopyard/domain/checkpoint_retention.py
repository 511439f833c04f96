"""Which checkpoints of a run are kept: `--keep last=3,best=2,every=10,metric=max:val_acc`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hopyard.backports import dataclass
from hopyard.domain.best_checkpoint import best_checkpoints
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.dataset import Dataset
from hopyard.domain.suggest import close_names
from hopyard.errors import SpecError

MAX_KEPT = 10_000  # the largest number of each part, and of checkpoints that `every` keeps
MAX_EVERY = 10**15
MAX_METRIC = 1024
_KEYS = ("last", "best", "every", "metric")


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """What a run keeps.

    last: the number of the newest checkpoints; None for the setting of the server. best: the number of those
    with the best values. every: each checkpoint with a step that is a multiple; None keeps none for its step.
    metric: for `best`, "max:val_acc" or "val_acc"; "" for that of the run.
    """

    last: int | None = None
    best: int = 1
    every: int | None = None
    metric: str = ""


DEFAULT_RULE = RetentionRule()


def retention_reasons(
    checkpoints: Sequence[Checkpoint],
    rule: RetentionRule = DEFAULT_RULE,
    *,
    default_last: int,
    resumed_from: Collection[int | None] = (),
    datasets: Iterable[Dataset] = (),
) -> dict[int, tuple[str, ...]]:
    """Returns why each step is kept; steps that are deleted are absent.

    checkpoints: in the order of saving, without damaged ones. default_last: the setting of the server; 0
    keeps all. resumed_from: the steps from which attempts resumed. The visible part of the streams depends on
    them. datasets: those of the run.
    """
    last = default_last if rule.last is None else rule.last
    newest_first = list(dict.fromkeys(checkpoint.step for checkpoint in reversed(checkpoints)))
    reasons: dict[int, list[str]] = {step: [] for step in newest_first}
    for step in newest_first[: last or None]:
        reasons[step].append(f"last={last}" if last else "all")
    for checkpoint in best_checkpoints(checkpoints, rule.best, metric=rule.metric, datasets=datasets):
        reasons[checkpoint.step].append(f"best={rule.best}")
    if rule.every is not None:
        multiples = [step for step in newest_first if step % rule.every == 0]
        for step in multiples[:MAX_KEPT]:
            reasons[step].append(f"every={rule.every}")
    for step in dict.fromkeys(checkpoint.step for checkpoint in checkpoints if checkpoint.kept):
        reasons[step].append("kept")
    for step in reasons.keys() & set(resumed_from):
        reasons[step].append("resumed")
    return {step: tuple(found) for step, found in reasons.items() if found}


def parse_retention(text: str, *, what: str = "--keep") -> RetentionRule:
    """Parses `last=3,best=2,every=10,metric=max:val_acc`, with any of the parts. Raises SpecError."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise _format_error(what, f"`{part.strip()}` is not KEY=VALUE")
        if key in values:
            raise _format_error(what, f"`{key}` is given twice")
        values[key] = value
    return read_retention(values, what=what)


def read_retention(values: Mapping[str, object], *, what: str) -> RetentionRule:
    """Returns the rule of these parts, as numbers or texts. Raises SpecError."""
    unknown = next((key for key in values if key not in _KEYS), None)
    if unknown is not None:
        close = [f"did you mean `{name}`?" for name in close_names(unknown, _KEYS, limit=1)]
        raise SpecError(f"{what}: unknown part `{unknown[:60]}`", hints=(*close, _EXAMPLE))
    metric = values.get("metric", "")
    if not isinstance(metric, str):
        raise _format_error(what, f"metric: {metric!r} is not the name of a metric")
    return check_retention(
        RetentionRule(
            _read_count(values, "last", None, what=what),
            _read_count(values, "best", 1, what=what) or 0,
            _read_count(values, "every", None, what=what),
            metric,
        ),
        what=what,
    )


def check_retention(rule: RetentionRule, *, what: str) -> RetentionRule:
    """Returns the rule. Raises SpecError for a number out of range."""
    for key, value, low, high in (
        ("last", rule.last, 1, MAX_KEPT),
        ("best", rule.best, 0, MAX_KEPT),
        ("every", rule.every, 1, MAX_EVERY),
    ):
        if value is not None and not low <= value <= high:
            raise _format_error(what, f"{key}={value} is out of range: at least {low}, at most {high}")
    direction, _, name = rule.metric.partition(":")
    is_direction = direction in ("max", "min") and not name
    if len(rule.metric) > MAX_METRIC or is_direction:
        raise _format_error(what, f"metric={rule.metric[:100]} does not name a metric")
    return rule


def format_retention(rule: RetentionRule) -> str:
    """Returns the text that `parse_retention` reads."""
    parts = {"last": rule.last, "best": rule.best, "every": rule.every, "metric": rule.metric or None}
    return ",".join(f"{key}={value}" for key, value in parts.items() if value is not None)


def _read_count(values: Mapping[str, object], key: str, default: int | None, *, what: str) -> int | None:
    value = values.get(key, default)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _format_error(what, f"{key}={value} is not a whole number")


_EXAMPLE = "for example `last=3,best=2,every=10,metric=max:val_acc`"


def _format_error(what: str, text: str) -> SpecError:
    return SpecError(f"{what}: {text}", hints=(_EXAMPLE,))
