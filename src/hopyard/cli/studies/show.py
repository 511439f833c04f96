"""`hop search show`: the state of a study, and one of its trials."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hopyard.cli.studies.table import STATE_STYLE, failure_reason, params_line, study_heading, trial_table
from hopyard.cli.terminal import console
from hopyard.cli.terminal.chart import Curve
from hopyard.client.run_lookup import get_study_spec
from hopyard.client.study_lookup import get_study, read_journal
from hopyard.domain.run import RunPhase
from hopyard.domain.text import escape
from hopyard.errors import NotFound
from hopyard.studies.view.study_view import StudyView, TrialView

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_MAX_ROWS = 12  # of a trial's curve


def read_study(ref: str) -> tuple[api.RunOut, StudyView]:
    from hopyard.api_client.local_server import connect

    client = connect()
    study = get_study(client, ref)
    view = StudyView.from_records(read_journal(client, study))
    view.spec = view.spec or dict(get_study_spec(study))  # a waiting study has no journal yet
    if RunPhase(study["phase"]).is_final:
        view.mark_ended()
    return study, view


def show_study(ref: str, *, as_json: bool) -> None:
    """Prints the study's trials, and the importance of its parameters if there are enough results."""
    from hopyard.studies.view.study_data import as_data

    study, view = read_study(ref)
    if as_json:
        console.print_json({"study": study["name"], "phase": study["phase"], **as_data(view)})
        return
    console.print_line(
        f"{study['name']}  {console.paint_phase(study['phase'])}"
        + (f": {why}" if (why := failure_reason(study)) else "")
    )
    console.print_lines(study_heading(view))
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    rows = trial_table(view, width=width)
    if rows:
        console.print_lines(["", *rows])
    for line in _importance_lines(view):
        console.print_line(line)


def _importance_lines(view: StudyView) -> list[str]:
    """Returns the importance of the parameters; nothing if it is unknown."""
    from hopyard.studies.view.study_data import importance_of, is_importance_uncertain

    shares = importance_of(view)
    if not shares:
        return []
    longest = max(map(len, shares))
    bars = [
        f"  {name:<{longest}}  {share:6.1%}  {'#' * round(30 * share)}".rstrip()
        for name, share in shares.items()
    ]
    heading = "importance of parameters (what decides whether a trial is among the best)"
    if is_importance_uncertain(view):
        heading += "; few trials, so the order may be chance"
    return ["", heading, *bars]


def show_trial(ref: str, trial: str, *, as_json: bool) -> None:
    """Prints one trial: parameters, curve, lineage, error. Raises NotFound with close numbers."""
    from hopyard.studies.view.study_data import trial_data

    study, view = read_study(ref)
    selected = find_trial(study, view, trial)
    if as_json:
        console.print_json({"study": study["name"], **trial_data(view, selected)})
        return
    for line in _trial_lines(view, selected):
        console.print_line(line)


def find_trial(study: api.RunOut, view: StudyView, trial: str) -> TrialView:
    """Raises NotFound with the numbers of the trials."""
    selected = view.trials.get(trial)
    if selected is None:
        raise NotFound(f"{study['name']} has no trial {trial}", hints=(_existing_trials(view),))
    return selected


def _existing_trials(view: StudyView) -> str:
    count = len(view.trials)
    return (
        "it has no trial yet"
        if not count
        else "its only trial is 0"
        if count == 1
        else f"its {count} trials are 0 to {count - 1}"
    )


def _trial_lines(view: StudyView, trial: TrialView) -> list[str]:
    from hopyard.cli.terminal.chart import draw_chart

    lines = [
        (
            f"trial {trial.id}  {console.paint(trial.state.value, STATE_STYLE[trial.state])}  {view.unit} "
            f"{trial.epoch}/{trial.budget}"
        ),
        params_line(trial.params),
    ]
    if trial.stop_reason:
        lines.append(f"stopped: {trial.stop_reason}")
    if trial.run:
        lines.append(f"run {trial.run_name or trial.run}")
    lineage = view.lineage(trial)
    if lineage:
        lines.append("its state comes from " + ", and that from ".join(f"trial {each}" for each in lineage))
    if trial.best is not None:
        lines.append(
            f"best {view.metric} {console.format_number(trial.best)} after {view.unit} {trial.best_epoch}"
        )
        if trial.best_params != trial.params:
            lines[-1] += f", with {params_line(trial.best_params)}"
    schedule = view.schedule(trial)
    if len(schedule) > 1:
        lines.append("schedule of its state")
        lines += [
            f"  from {view.unit} {entry.from_epoch}  trial {name}  {params_line(dict(entry.params))}"
            for name, entry in schedule
        ]
    if trial.metrics:
        lines.append(
            "  ".join(
                f"{escape(name)} {console.format_number(value)}"
                for name, value in sorted(trial.metrics.items())
            )
        )
    if len(trial.points) > 1:
        curve = Curve(
            view.metric, [float(step) for step, _ in trial.points], [value for _, value in trial.points]
        )
        picture = draw_chart(
            [curve],
            width=min(100, console.terminal_width()),
            height=_MAX_ROWS,
            unicode=console.supports_unicode(sys.stdout),
        )
        lines += ["".join(cell.text for cell in row).rstrip() for row in picture]
    if trial.error:
        lines += ["", console.paint(trial.error, "red"), trial.traceback]
    return lines


def study_line(view: StudyView) -> str:
    """Returns the state of a study in one line."""
    counts = ", ".join(f"{number} {state.value}" for state, number in view.counts().items() if number)
    best = view.best()
    return f"{len(view.trials)} trials: {counts}" + (
        "" if best is None else f"; best {view.metric} {console.format_number(best.best)} (trial {best.id})"
    )
