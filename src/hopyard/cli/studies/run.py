"""Starts a study and follows it; replays an ended study."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.cli.run_text import address, exit_code, exit_reason, start_line
from hopyard.cli.studies.show import study_line
from hopyard.cli.studies.table import failure_reason, params_line, study_heading, trial_table
from hopyard.cli.submit_notices import print_notices
from hopyard.cli.terminal import console
from hopyard.cli.terminal.transfer_bar import TransferBar
from hopyard.client.build_run import target_folder
from hopyard.client.command_line_study import build_command_line_study, check_file_options
from hopyard.client.default_searcher import with_default_searcher
from hopyard.client.download import download_tree
from hopyard.client.local_searcher import build_searcher
from hopyard.client.run_lookup import get_study_spec
from hopyard.client.study_lookup import get_study, read_journal
from hopyard.config import key_values as pairs
from hopyard.config.home import Home
from hopyard.config.run_request import parse_scheduling
from hopyard.config.schemas.study_json import study_from_json
from hopyard.config.search.search_file import read_search_file
from hopyard.config.search.study_request import StudyRequest
from hopyard.domain.ids import check_label, check_name
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Constant, Parameter, Space
from hopyard.domain.trial import Proposal
from hopyard.errors import NotFound, SpecError
from hopyard.studies.view.study_view import StudyView

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_PREVIEW_TRIALS = 10


def build_study_request(
    what: str, arguments: tuple[str, ...], folder: Path, options: dict[str, Any]
) -> StudyRequest:
    """Returns the study of a file, or of a script or command with the ranges of `-p`. Raises SpecError."""
    if what.endswith((".yaml", ".yml")):
        check_file_options(Path(what), options, arguments)
        request = _build_file_request(Path(what), folder, options)
    else:
        request = build_command_line_study(what, arguments, folder, options, notify=console.print_message)
    return with_default_searcher(request, notify=console.print_message)


def _build_file_request(file: Path, folder: Path, options: Mapping[str, Any]) -> StudyRequest:
    """Returns the study of `file` with the options of the command line, which override the file. Raises
    SpecError."""
    request = read_search_file(file, folder)
    study, changes = request.study, parse_scheduling(options)
    if options.get("trials"):
        study = replace(study, trials=options["trials"])
    if options.get("seed") is not None:
        study = replace(study, seed=options["seed"])
    fixed = pairs.parse_params(options.get("params") or ())
    if fixed:
        study = replace(study, space=_fix_params(study.space, fixed))
    if options.get("label"):
        changes["label"] = check_label(check_name(options["label"], subject="--name"), subject="--name")
        study = replace(study, name=changes["label"])
    trial = request.trial
    if trial is not None:
        inherited = {key: value for key, value in changes.items() if key != "label"}
        trial = replace(
            trial, params={key: value for key, value in trial.params.items() if key not in fixed}, **inherited
        )
    kept = {key: value for key, value in request.run.params.items() if key not in fixed}
    return replace(request, study=study, run=replace(request.run, params=kept, **changes), trial=trial)


def _fix_params(space: Space, values: Mapping[str, ParamValue]) -> Space:
    """Returns the space with these parameters constant."""
    parameters = [
        Parameter(p.name, Constant(values[p.name])) if p.name in values else p for p in space.parameters
    ]
    names = {p.name for p in space.parameters}
    return Space(
        (
            *parameters,
            *(Parameter(name, Constant(value)) for name, value in values.items() if name not in names),
        )
    )


def preview_study(what: str, arguments: tuple[str, ...], options: dict[str, Any], *, as_json: bool) -> None:
    """Checks the study, and prints the first trials that its searcher proposes. Raises SpecError."""
    from hopyard.searchers.registry import build
    from hopyard.trainables.load import load_attribute

    folder = Path.cwd()
    study = build_study_request(what, arguments, folder, options).study
    searcher = build_searcher(study, source_name=what) or build(
        study, lambda text: load_attribute(text, folder)
    )
    proposals: list[Proposal] = []
    while len(proposals) < _PREVIEW_TRIALS and isinstance(proposal := searcher.ask(), Proposal):
        proposals.append(proposal)
    if as_json:
        console.print_json(
            {
                "name": study.name,
                "trials": [
                    {"trial": p.trial, "params": dict(p.params), "budget": p.budget} for p in proposals
                ],
            }
        )
        return
    console.print_line(
        f"{study.name}: {study.searcher.name}, {study.goal.value} {study.metric}, parallel: "
        f"{study.parallel.value}; the first trials would be"
    )
    unit = study.budget_unit
    for p in proposals:
        console.print_line(
            f"  trial {p.trial}, {p.budget} {unit.singular if p.budget == 1 else unit.value}: "
            f"{params_line(dict(p.params))}"
        )


def start_study(
    what: str, arguments: tuple[str, ...], options: dict[str, Any], *, detach: bool, as_json: bool
) -> int:
    """Submits the study, and follows it unless `detach`.

    Returns the exit code of the command: 0 if the study found a best trial.
    """
    from hopyard.client.param_forms import with_trial_format
    from hopyard.client.submit import submit_run

    folder = Path.cwd()
    request = build_study_request(what, arguments, folder, options)
    folder = target_folder(what, folder)
    if folder == Path("/"):
        raise SpecError(
            "the current folder is /: the whole machine would be packed",
            hints=("cd into the folder of the code; it travels with the study",),
        )
    build_searcher(request.study, source_name=what)
    request = with_trial_format(request, folder, notify=console.print_message)
    client, run = submit_run(
        request.run,
        folder,
        spec=request.spec,
        trial=request.trial,
        notify=console.print_message,
        on_progress=TransferBar,
    )
    return attach_to_study(client, run, detach=detach, as_json=as_json)


def attach_to_study(client: Client, run: api.RunOut, *, detach: bool, as_json: bool) -> int:
    """Announces a submitted study and, unless `detach`, follows it to its end. Returns the exit code of the
    command."""
    print_notices(run)
    console.print_message(f"study {run['name']}  {address(client, run)}  {start_line(run)}")
    if detach:
        if as_json:
            console.print_json(
                {
                    "id": run["id"],
                    "name": run["name"],
                    "url": address(client, run),
                    "phase": run["phase"],
                    "run": run,
                }
            )
        elif not console.is_terminal(sys.stdout):
            console.print_line(run["name"])
        return 0
    return follow_study(client, run, as_json=as_json)


def follow_study(client: Client, run: api.RunOut, *, as_json: bool) -> int:
    """Follows a study until it ends, and prints its result."""
    from hopyard.cli.follow_interrupt import EXIT_DETACHED, follow_or_detach
    from hopyard.cli.run_output import OutputClosed
    from hopyard.cli.studies.live_screen import StudyOutput, StudyScreen
    from hopyard.cli.terminal_listener import TerminalListener
    from hopyard.client.follow import RunFollower

    view = StudyView()
    screen = StudyScreen(view)
    output = StudyOutput(
        screen, prints_events=not as_json, continued_run=get_study_spec(run).get("continues", "")
    )
    listener = TerminalListener(output, screen)
    follower = RunFollower(client, run, listener, streams=("stderr", "journal"), rank=0)
    try:
        ended = follow_or_detach(follower, screen)
    except OutputClosed:
        raise BrokenPipeError from None
    finally:
        screen.close()
    if ended is not None:
        view.mark_ended()
    if as_json:
        from hopyard.studies.view.study_data import as_data

        now = ended or follower.run
        console.print_json({"study": now["name"], "id": now["id"], "phase": now["phase"], **as_data(view)})
    if ended is None:
        return EXIT_DETACHED
    if not as_json:
        _print_study_end(ended, view)
    return exit_code(ended)


def _print_study_end(run: api.RunOut, view: StudyView) -> None:
    trained = any(trial.epoch or trial.error for trial in view.trials.values())
    if trained:
        console.print_lines(study_heading(view))
        console.print_lines(
            trial_table(view, width=console.terminal_width() if console.is_terminal(sys.stdout) else None)
        )
    why = failure_reason(run) or (exit_reason(run) if run["phase"] == "cancelled" else "")
    parts = [
        f"{run['name']} {run['phase']}" + (f": {why}" if why else ""),
        study_line(view) if trained else "nothing was trained",
    ]
    console.print_message("; ".join(parts))
    best = view.best()
    if best is not None and run["phase"] == "succeeded":
        console.print_message(f"hop search show {run['name']} --trial {best.id}   shows the best trial")
        if get_study_spec(run)["parallel"] == "mop":
            console.print_message(f"hop fork {run['name']} --checkpoint best   trains it further")


def replay_study(ref: str, trials: tuple[str, ...], *, as_json: bool) -> int:
    """Repeats the recorded training on this machine, with the study's code, data and interpreter. Returns 1
    if a state differs."""
    import subprocess
    import tempfile

    from hopyard.api_client.local_server import connect
    from hopyard.replica.process_env import make_sdk_folder
    from hopyard.studies.journal import encode_record

    client = connect()
    study = client.get_run(get_study(client, ref)["id"])
    spec, study_spec = study["spec"], get_study_spec(study)
    mop = study_spec.get("mop")
    if study_spec["parallel"] != "mop" or mop is None:
        raise SpecError(
            f"the trials of {study['name']} are separate runs",
            hints=("run `hop fork RUN` to repeat one of them, from its code, data and environment",),
        )
    if not spec["code"] or not spec["datasets"]:
        raise SpecError(f"{study['name']} has no code or no dataset, so it cannot be replayed")
    with tempfile.TemporaryDirectory(prefix="hopyard-replay-") as name:
        scratch = Path(name)
        download_tree(client, spec["code"], scratch / "code", on_progress=TransferBar)
        download_tree(
            client,
            next(d["manifest"] or "" for d in spec["datasets"] if d["name"] == mop["dataset"]),
            scratch / "data",
            on_progress=TransferBar,
        )
        (scratch / "journal").write_bytes(b"".join(map(encode_record, read_journal(client, study))))
        words = [
            _study_interpreter(spec),
            "-m",
            "hopyard.mop_runtime.replay_main",
            str(scratch / "journal"),
            str(scratch / "code"),
            str(scratch / "data"),
        ]
        if study_spec.get("beginning"):
            words.append(f"--beginning={_download_fork_state(client, study, scratch / 'saved')}")
        words += [f"--trial={trial}" for trial in trials] + ["--json"] * as_json
        paths = [make_sdk_folder(Home.default().root), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            words, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}, check=False
        ).returncode


def _download_fork_state(client: Client, study: api.RunOut, folder: Path) -> Path:
    """Returns the file with the initial state of a fork: from its newest checkpoint, or else from the
    checkpoint of its source. Raises NotFound."""
    from hopyard.client.checkpoint_lookup import is_resumable
    from hopyard.mop_runtime.driver.fork_state import fork_states

    begin = study_from_json(get_study_spec(study)).beginning
    assert begin is not None
    own = [
        checkpoint for checkpoint in client.iterate_run_checkpoints(study["id"]) if is_resumable(checkpoint)
    ]
    resume = study["spec"]["resume"]
    assert own or resume is not None
    manifest = own[-1]["manifest"] if own or resume is None else resume["manifest"]
    download_tree(client, manifest, folder, on_progress=TransferBar)
    state_file = fork_states({file.name: file for file in folder.iterdir()}, begin).get(begin.fork_state_name)
    if state_file is None:
        raise NotFound(f"the state that {study['name']} began with was not saved")
    return state_file


def _study_interpreter(spec: Mapping[str, Any]) -> str:
    """Returns the study's own interpreter if this machine has it: other versions of its packages may round
    differently."""
    own = spec["environment"].get("interpreter") or ""
    if own and os.access(own, os.X_OK):
        return str(own)
    console.print_message(
        "note: the study ran in another environment; other versions of its packages may give slightly "
        "different results"
    )
    return sys.executable
