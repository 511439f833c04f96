"""A study as a table: what it is about, how far it is, and its trials, the best first."""

from __future__ import annotations

import re
import sys
from typing import Any

from hopyard.cli import console
from hopyard.cli.address import Run, begun_with, first_line
from hopyard.studies.standing import Phase
from hopyard.studies.view.standing import StudyView, TrialView

STATE_STYLE = {
    Phase.TRAINING: "cyan",
    Phase.PAUSED: "yellow",
    Phase.COMPLETED: "green",
    Phase.STOPPED: "dim",
    Phase.FAILED: "red",
}
_LONGEST_VALUE, _LONGEST_HEAD = 18, 14
_FEWEST_WORDS = 24  # columns that an error has at least
# of the driver, whose last line is why the study failed
_HOW_IT_SAYS_SO = re.compile(r"^(replica \d+: )?exit code \d+: (error: )?")


def heading(view: StudyView) -> list[str]:
    """What the study searches, how many trials are in which state, and the best one."""
    spec = view.spec
    searcher = searcher_name(spec)
    counts = view.counts()
    trials = (
        f"{len(view.trials)} of {spec['trials']} trials"
        if spec.get("trials")
        else f"{len(view.trials)} trials"
    )
    states = ", ".join(
        f"{number} {console.paint(state.value, STATE_STYLE[state])}"
        for state, number in counts.items()
        if number
    )
    lines = [
        (
            f"{console.paint(str(spec.get('name', '')), 'bold')}  {searcher}, {view.goal.value} "
            f"{view.metric}  {trials}: {states or 'none yet'}"
        )
    ]
    if spec.get("beginning"):
        lines.append(f"trains on {begun_with(spec['beginning'], view.metric)}{_changes(view)}")
    if view.continues:
        lines.append(f"continues {view.continues}")
    best = view.best()
    if best is not None:
        lines.append(
            f"best {view.metric} {console.number(best.best)} by trial {best.id} after epoch "
            f"{best.best_epoch}: {params_line(best.params)}"
        )
    return lines


def searcher_name(study: dict[str, Any]) -> str:
    """Of a StudySpec as JSON; `fork` where nothing is searched, but another study's best model trained on."""
    return "fork" if study.get("beginning") else str((study.get("searcher") or {}).get("name", ""))


def _changes(view: StudyView) -> str:
    """Which parameters of a fork's trial are others than those of the model that it began with."""
    had, trial = view.spec["beginning"]["params"], view.trials.get("0")
    now = {} if trial is None else trial.params
    told = [
        (
            f"{name}={value_text(now[name]) if name in now else 'nothing'} in place of "
            f"{value_text(had[name]) if name in had else 'nothing'}"
        )
        for name in {**had, **now}
        if now and now.get(name) != had.get(name)
    ]
    return f"; {', '.join(told)}" if told else ""


def table_of(
    view: StudyView, *, limit: int | None = None, width: int | None = None, stream: Any = None
) -> list[str]:
    """The trials, the best first, at most `limit` of them; those in training are never left out for others.
    Parameters for which `width` has no room are named below."""
    trials = view.ranked()
    if not trials:
        return []
    shown = _most_wanted(trials, limit)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    placed, words = any(map(_place, shown)), any(map(_words, shown))
    head = ["TRIAL", "STATE", "EPOCH", view.metric or "VALUE", "BEST", *["ON"] * placed]
    rows = [_row(trial, placed=placed, stream=stream or sys.stdout) for trial in shown]
    kept = (
        names
        if width is None
        else _that_fit(names, shown, width - _width(head, rows) - (_FEWEST_WORDS if words else 0))
    )
    heads = [*head, *(kept if width is None else map(_heading, kept)), *[""] * words]
    rows = [
        [*row, *(_value_of(trial, name) for name in kept), *[_words(trial)] * words]
        for row, trial in zip(rows, shown, strict=True)
    ]
    lines = console.table(heads, rows, right=(0, 2, 3, 4), width=width)
    if len(kept) < len(names):
        lines.append(
            f"no room for {', '.join(name for name in names if name not in kept)}; `hop search show "
            "--trial N` has all"
        )
    if len(shown) < len(trials):
        lines.append(f"… and {len(trials) - len(shown)} more; `hop search show STUDY` lists all")
    return lines


def _width(head: list[str], rows: list[list[str]]) -> int:
    return sum(max(map(console.shown_width, column)) + 2 for column in zip(head, *rows, strict=True))


def _that_fit(names: list[str], trials: list[TrialView], room: int) -> list[str]:
    """At least one. Those that are the same in all trials go first, then the last ones."""
    kept = list(names)
    same = [name for name in names if len({_value_of(trial, name) for trial in trials}) == 1]
    for name in (*reversed(same), *(name for name in reversed(names) if name not in same)):
        if (
            len(kept) == 1
            or sum(
                max(len(_heading(one)), *(len(_value_of(trial, one)) for trial in trials)) + 2 for one in kept
            )
            <= room
        ):
            break
        kept.remove(name)
    return kept


def _heading(name: str) -> str:
    return name if len(name) <= _LONGEST_HEAD else name[: _LONGEST_HEAD - 1] + "…"


def _place(trial: TrialView) -> str:
    return trial.run_name or trial.run or ("+".join(trial.where) if trial.state is Phase.TRAINING else "")


def _words(trial: TrialView) -> str:
    return (
        trial.error.splitlines()[0]
        if trial.error
        else f"from trial {trial.start_from}"
        if trial.start_from
        else ""
    )


def _value_of(trial: TrialView, name: str) -> str:
    return value_text(trial.params[name]) if name in trial.params else ""


def _row(trial: TrialView, *, placed: bool, stream: Any) -> list[str]:
    return [
        trial.id,
        console.paint(trial.state.value, STATE_STYLE[trial.state], stream),
        f"{trial.epoch}/{trial.budget}" if trial.budget else str(trial.epoch),
        console.number(trial.value) if trial.value is not None else "",
        console.number(trial.best) if trial.best is not None else "",
        *[_place(trial)] * placed,
    ]


def _most_wanted(trials: list[TrialView], limit: int | None) -> list[TrialView]:
    if limit is None or len(trials) <= limit:
        return trials
    training = [trial for trial in trials if trial.state is Phase.TRAINING]
    kept = {trial.id for trial in [*training, *trials][:limit]} | {trials[0].id}
    return [trial for trial in trials if trial.id in kept][:limit]


def params_line(params: dict[str, Any]) -> str:
    """`lr=0.001 width=64`."""
    return " ".join(f"{name}={value_text(value)}" for name, value in params.items())


def value_text(value: Any) -> str:
    text = console.number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def why_failed(study: Run) -> str:
    """In one line; "" where it did not fail."""
    return (
        _HOW_IT_SAYS_SO.sub("", first_line((study.get("exit") or {}).get("reason", "")))
        if study["phase"] == "failed"
        else ""
    )
