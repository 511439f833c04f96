"""The table of a study: its subject, its progress, and its trials, the best first."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopyard.cli.run_text import exit_reason, fork_source_text
from hopyard.cli.terminal import console
from hopyard.domain.text import first_line
from hopyard.studies.study_state import TrialPhase
from hopyard.studies.view.study_view import StudyView, TrialView

if TYPE_CHECKING:
    from hopyard.api_client import types as api

STATE_STYLE = {
    TrialPhase.TRAINING: "cyan",
    TrialPhase.PAUSED: "yellow",
    TrialPhase.COMPLETED: "green",
    TrialPhase.STOPPED: "dim",
    TrialPhase.FAILED: "red",
}
_MAX_VALUE_WIDTH, _MAX_HEAD_WIDTH = 18, 14
_MIN_REASON_WIDTH = 24  # columns that an error has at least
# of the driver: its last line is the error of the study
_EXIT_CODE_PREFIX = re.compile(r"^(replica \d+: )?exit code \d+: (error: )?")


def study_heading(view: StudyView) -> list[str]:
    """Returns the searcher, the number of trials in each state, and the best trial."""
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
        lines.append(f"trains on {fork_source_text(spec['beginning'], spec)}{_changed_params(view)}")
    if view.continues:
        lines.append(f"continues {view.continues}")
    if view.stop_rule:
        lines.append(f"ended early: {view.stop_rule}")
    best = view.best()
    if best is not None:
        lines.append(
            f"best {view.metric} {console.format_number(best.best)} by trial {best.id} after {view.unit} "
            f"{best.best_epoch}: {params_line(best.best_params)}"
        )
    return lines


def searcher_name(study: Mapping[str, Any]) -> str:
    """Returns the searcher of a StudySpec as JSON; `fork` for a study that trains another study's best
    model."""
    return "fork" if study.get("beginning") else str((study.get("searcher") or {}).get("name", ""))


def _changed_params(view: StudyView) -> str:
    """Returns the parameters of a fork's trial that differ from those of its source model."""
    had, trial = view.spec["beginning"]["params"], view.trials.get("0")
    now = {} if trial is None else trial.params
    changes = [
        (
            f"{name}={param_value_text(now[name]) if name in now else 'nothing'} in place of "
            f"{param_value_text(had[name]) if name in had else 'nothing'}"
        )
        for name in {**had, **now}
        if now and now.get(name) != had.get(name)
    ]
    return f"; {', '.join(changes)}" if changes else ""


def trial_table(
    view: StudyView, *, limit: int | None = None, width: int | None = None, stream: Any = None
) -> list[str]:
    """Returns at most `limit` trials, the best first, including all trials in training.
    Parameters that do not fit `width` are named below.
    """
    trials = view.ranked()
    if not trials:
        return []
    shown = _select_trials(trials, limit)
    names = list(dict.fromkeys(name for trial in trials for name in _params_of(trial)))
    placed, words = any(map(_rank_text, shown)), any(map(_state_text, shown))
    head = ["TRIAL", "STATE", view.unit.upper(), view.metric or "VALUE", "BEST", *["ON"] * placed]
    rows = [_trial_row(trial, rank=placed, stream=stream or sys.stdout) for trial in shown]
    columns = (
        names
        if width is None
        else _fitting_columns(names, shown, width - _width(head, rows) - (_MIN_REASON_WIDTH if words else 0))
    )
    heads = [*head, *(columns if width is None else map(_column_heading, columns)), *[""] * words]
    rows = [
        [*row, *(_param_value(trial, name) for name in columns), *[_state_text(trial)] * words]
        for row, trial in zip(rows, shown, strict=True)
    ]
    lines = console.format_table(heads, rows, right=(0, 2, 3, 4), width=width)
    if len(columns) < len(names):
        lines.append(
            f"not shown for lack of space: {', '.join(name for name in names if name not in columns)}; "
            "`hop search show --trial N` has all"
        )
    if len(shown) < len(trials):
        lines.append(f"… and {len(trials) - len(shown)} more; `hop search show STUDY` lists all")
    return lines


def _width(head: list[str], rows: list[list[str]]) -> int:
    return sum(max(map(console.display_width, column)) + 2 for column in zip(head, *rows, strict=True))


def _fitting_columns(names: list[str], trials: list[TrialView], width: int) -> list[str]:
    """Returns the parameters that fit, at least one. Parameters with one value in all trials are dropped
    first, then the last ones.
    """
    columns = list(names)
    same = [name for name in names if len({_param_value(trial, name) for trial in trials}) == 1]
    for name in (*reversed(same), *(name for name in reversed(names) if name not in same)):
        if (
            len(columns) == 1
            or sum(
                max(len(_column_heading(column)), *(len(_param_value(trial, column)) for trial in trials)) + 2
                for column in columns
            )
            <= width
        ):
            break
        columns.remove(name)
    return columns


def _column_heading(name: str) -> str:
    return name if len(name) <= _MAX_HEAD_WIDTH else name[: _MAX_HEAD_WIDTH - 1] + "…"


def _rank_text(trial: TrialView) -> str:
    return (
        trial.run_name or trial.run or ("+".join(trial.where) if trial.state is TrialPhase.TRAINING else "")
    )


def _state_text(trial: TrialView) -> str:
    return (
        trial.error.splitlines()[0]
        if trial.error
        else f"from trial {trial.start_from}"
        if trial.start_from
        else ""
    )


def _param_value(trial: TrialView, name: str) -> str:
    params = _params_of(trial)
    return param_value_text(params[name]) if name in params else ""


def _params_of(trial: TrialView) -> dict[str, Any]:
    """Returns the parameters of its best value; its current ones before its first report."""
    return trial.best_params or trial.params


def _trial_row(trial: TrialView, *, rank: bool, stream: Any) -> list[str]:
    return [
        trial.id,
        console.paint(trial.state.value, STATE_STYLE[trial.state], stream),
        f"{trial.epoch}/{trial.budget}" if trial.budget else str(trial.epoch),
        console.format_number(trial.value) if trial.value is not None else "",
        console.format_number(trial.best) if trial.best is not None else "",
        *[_rank_text(trial)] * rank,
    ]


def _select_trials(trials: list[TrialView], limit: int | None) -> list[TrialView]:
    if limit is None or len(trials) <= limit:
        return trials
    training = [trial for trial in trials if trial.state is TrialPhase.TRAINING]
    ids = {trial.id for trial in [*training, *trials][:limit]} | {trials[0].id}
    return [trial for trial in trials if trial.id in ids][:limit]


def params_line(params: dict[str, Any]) -> str:
    """`lr=0.001 width=64`."""
    return " ".join(f"{name}={param_value_text(value)}" for name, value in params.items())


def param_value_text(value: Any) -> str:
    text = console.format_number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_VALUE_WIDTH else text[: _MAX_VALUE_WIDTH - 1] + "…"


def failure_reason(study: api.RunOut) -> str:
    """Returns an error in one line; "" for none."""
    return _EXIT_CODE_PREFIX.sub("", first_line(exit_reason(study))) if study["phase"] == "failed" else ""
