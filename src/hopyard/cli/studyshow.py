"""`hop search show`: how a study stands, and one of its trials."""

from __future__ import annotations

import sys
from typing import Any

from hopyard.cli import console
from hopyard.cli.address import Run, get_run
from hopyard.cli.canvas import Curve
from hopyard.cli.studytable import STATE_STYLE, heading, params_line, table_of, why_failed
from hopyard.domain.run import RunPhase
from hopyard.errors import NotFound, SpecError
from hopyard.sdk.client import Client
from hopyard.studies.journal import read_records
from hopyard.studies.view.standing import StudyView, TrialView

_LOOK_AT = 1000  # so many of the newest studies have their names compared
_ROWS = 12  # of a trial's curve


def get_study(client: Client, ref: str) -> Run:
    """The study's run: named as any run, or by the name that its file gives it. The newest study of the
    caller's own where `ref` is empty. Raises NotFound, SpecError where it is a run but no study."""
    if not ref:
        return _newest(client)
    try:
        found = get_run(client, ref)
    except NotFound:
        named = _by_name(client, ref)
        if named is None:
            raise
        return named
    if found["spec"].get("study") is None:
        named = _by_name(client, ref)  # a run may have the same label
        if named is None:
            raise SpecError(
                f"{found['name']} is a run, but no study", hints=("`hop search ls -a` lists the studies",)
            )
        return named
    return found


def _by_name(client: Client, ref: str) -> Run | None:
    """The newest study that is called so by its label, else by its file; one of the caller's own first."""
    studies: list[Run] = client.get("/runs", studies=1, limit=_LOOK_AT)["runs"]
    called = [one for one in studies if one["spec"].get("label") == ref] or [
        one for one in studies if one["spec"]["study"]["name"] == ref
    ]
    if not called:
        return None
    own = _own_user(client)
    return get_run(
        client, next((one for one in called if one["name"].partition("/")[0] == own), called[0])["id"]
    )


def _own_user(client: Client) -> str:
    """The caller's name, of the newest run of theirs; "" where there is none."""
    try:
        return str(get_run(client, "last")["name"].partition("/")[0])
    except NotFound:
        return ""


def _newest(client: Client) -> Run:
    """Of the caller's own: code of others is run (`replay`), and continued in the caller's name (`resume`),
    only where they are named."""
    own = _own_user(client)
    found: list[Run] = client.get("/runs", studies=1, user=own, limit=1)["runs"] if own else []
    if not found:
        raise NotFound(
            "there is no study of yours yet",
            hints=("`hop search search.yaml` starts one", "`hop search ls -a` lists those of others"),
        )
    return get_run(client, found[0]["id"])  # whole: a listing carries only what it is about


def read_journal(client: Client, study: Run) -> list[dict[str, Any]]:
    """All records of the study, over all its attempts. The server sends so much of them at a time."""
    data = b""
    while True:
        with client.open("GET", f"/runs/{study['id']}/journal", query={"offset": len(data)}) as answer:
            part = answer.read()
        if not part:
            return list(read_records(data))
        data += part


def read_study(ref: str) -> tuple[Run, StudyView]:
    from hopyard.sdk.connect import connect

    client = connect()
    study = get_study(client, ref)
    view = StudyView.of(read_journal(client, study))
    view.spec = view.spec or study["spec"]["study"]  # one that waits has written nothing
    if RunPhase(study["phase"]).final:
        view.end()
    return study, view


def show_study(ref: str, *, as_json: bool) -> None:
    """Print the study's trials, and what its parameters matter where there are enough results to tell."""
    from hopyard.studies.view.data import as_data

    study, view = read_study(ref)
    if as_json:
        console.out_json({"study": study["name"], "phase": study["phase"], **as_data(view)})
        return
    console.out(
        f"{study['name']}  {console.paint_phase(study['phase'])}"
        + (f": {why}" if (why := why_failed(study)) else "")
    )
    console.out_lines(heading(view))
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    rows = table_of(view, width=width)
    if rows:
        console.out_lines(["", *rows])
    for line in _importance(view):
        console.out(line)


def _importance(view: StudyView) -> list[str]:
    """What the parameters matter; nothing where that cannot be told."""
    from importlib.util import find_spec

    from hopyard.studies.view.data import enough_results, importance_of

    found = importance_of(view)
    if not found:
        lacking = enough_results(view) and find_spec("optuna") is None
        return (
            [
                "",
                (
                    "hint: what its parameters matter is told where Optuna is installed: pip install "
                    "'hopyard[search]'"
                ),
            ]
            if lacking
            else []
        )
    longest = max(map(len, found))
    bars = [
        f"  {name:<{longest}}  {share:6.1%}  {'#' * round(30 * share)}".rstrip()
        for name, share in found.items()
    ]
    return ["", "importance of parameters (what decides whether a trial is among the best)", *bars]


def show_trial(ref: str, trial: str, *, as_json: bool) -> None:
    """Print one trial: parameters, curve, where it comes from, its error.
    Raises NotFound with close numbers."""
    from hopyard.studies.view.data import trial_data

    study, view = read_study(ref)
    found = view.trials.get(trial)
    if found is None:
        raise NotFound(f"{study['name']} has no trial {trial}", hints=(_those_there(view),))
    if as_json:
        console.out_json({"study": study["name"], **trial_data(view, found)})
        return
    for line in _trial_lines(view, found):
        console.out(line)


def _those_there(view: StudyView) -> str:
    count = len(view.trials)
    return (
        "it has no trial yet"
        if not count
        else "its only trial is 0"
        if count == 1
        else f"its {count} trials are 0 to {count - 1}"
    )


def _trial_lines(view: StudyView, trial: TrialView) -> list[str]:
    from hopyard.cli.canvas import draw

    lines = [
        (
            f"trial {trial.id}  {console.paint(trial.state.value, STATE_STYLE[trial.state])}  epoch "
            f"{trial.epoch}/{trial.budget}"
        ),
        params_line(trial.params),
    ]
    if trial.run:
        lines.append(f"run {trial.run_name or trial.run}")
    lineage = view.lineage(trial)
    if lineage:
        lines.append("its state comes from " + ", and that from ".join(f"trial {each}" for each in lineage))
    if trial.best is not None:
        lines.append(f"best {view.metric} {console.number(trial.best)} after epoch {trial.best_epoch}")
    if trial.metrics:
        lines.append(
            "  ".join(f"{name} {console.number(value)}" for name, value in sorted(trial.metrics.items()))
        )
    if len(trial.points) > 1:
        curve = Curve(
            view.metric, [float(step) for step, _ in trial.points], [value for _, value in trial.points]
        )
        picture = draw(
            [curve],
            width=min(100, console.terminal_width()),
            height=_ROWS,
            unicode=console.has_unicode(sys.stdout),
        )
        lines += ["".join(cell.text for cell in row).rstrip() for row in picture]
    if trial.error:
        lines += ["", console.paint(trial.error, "red"), trial.traceback]
    return lines


def as_line(view: StudyView) -> str:
    """How it stands, in one line."""
    counts = ", ".join(f"{number} {state.value}" for state, number in view.counts().items() if number)
    best = view.best()
    return f"{len(view.trials)} trials: {counts}" + (
        "" if best is None else f"; best {view.metric} {console.number(best.best)} (trial {best.id})"
    )
