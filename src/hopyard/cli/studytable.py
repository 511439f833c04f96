"""A study as a table: what it is about, how far it is, and its trials, the best first."""

from __future__ import annotations

import sys
from typing import Any

from hopyard.cli import console
from hopyard.studies.standing import Phase
from hopyard.studies.view.standing import StudyView, TrialView

STATE_STYLE = {
    Phase.TRAINING: "cyan",
    Phase.PAUSED: "yellow",
    Phase.COMPLETED: "green",
    Phase.STOPPED: "dim",
    Phase.FAILED: "red",
}
_LONGEST_VALUE = 18


def heading(view: StudyView) -> list[str]:
    """What the study searches, how many trials are in which state, and the best one."""
    spec = view.spec
    searcher = (spec.get("searcher") or {}).get("name", "")
    counts = view.counts()
    trials = f"{len(view.trials)} of {spec['trials']} trials" if spec.get("trials") else f"{len(view.trials)} trials"
    states = ", ".join(f"{number} {console.paint(state.value, STATE_STYLE[state])}" for state, number in counts.items() if number)
    lines = [f"{console.paint(str(spec.get('name', '')), 'bold')}  {searcher}, {view.goal.value} {view.metric}  {trials}: {states or 'none yet'}"]
    if view.continues:
        lines.append(f"continues {view.continues}")
    best = view.best()
    if best is not None:
        lines.append(f"best {view.metric} {console.number(best.best)} by trial {best.id} after epoch {best.best_epoch}: {params_line(best.params)}")
    return lines


def table_of(view: StudyView, *, limit: int | None = None, width: int | None = None, stream: Any = None) -> list[str]:
    """The trials, the best first, at most `limit` of them; those in training are never left out for others."""
    trials = view.ranked()
    if not trials:
        return []
    shown = _most_wanted(trials, limit)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    placed = any(trial.where or trial.run for trial in trials)
    head = ["TRIAL", "STATE", "EPOCH", view.metric or "VALUE", "BEST", *["ON"] * placed, *names, ""]
    rows = [_row(trial, names, placed=placed, stream=stream or sys.stdout) for trial in shown]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    lines = console.table(head, rows, right=(0, 2, 3, 4), width=width)
    if len(shown) < len(trials):
        lines.append(f"… and {len(trials) - len(shown)} more; `hop search show STUDY` lists all")
    return lines


def _row(trial: TrialView, names: list[str], *, placed: bool, stream: Any) -> list[str]:
    on = trial.run_name or trial.run or ("+".join(trial.where) if trial.state is Phase.TRAINING else "")
    words = trial.error.splitlines()[0] if trial.error else f"from trial {trial.start_from}" if trial.start_from else ""
    return [
        trial.id,
        console.paint(trial.state.value, STATE_STYLE[trial.state], stream),
        f"{trial.epoch}/{trial.budget}" if trial.budget else str(trial.epoch),
        console.number(trial.value) if trial.value is not None else "",
        console.number(trial.best) if trial.best is not None else "",
        *[on] * placed,
        *(value_text(trial.params[name]) if name in trial.params else "" for name in names),
        words,
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
