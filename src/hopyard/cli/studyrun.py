"""Starts a study and follows it; replays one that has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.cli import console
from hopyard.cli.address import address, exit_code, standing
from hopyard.cli.remarks import tell_remarks
from hopyard.cli.studyshow import as_line, get_study, read_journal
from hopyard.cli.studytable import heading, params_line, table_of, why_failed
from hopyard.config import params as pairs
from hopyard.config.home import Home
from hopyard.config.runspec import parse_standing
from hopyard.config.searchfile import read_searchfile
from hopyard.config.studyjson import study_of_json
from hopyard.config.studyrequest import StudyRequest
from hopyard.domain.ids import check_label, check_name
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Constant, Parameter, Space
from hopyard.domain.study import StudySpec
from hopyard.domain.trial import Proposal
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.searcher import Searcher
from hopyard.sdk.client import Client
from hopyard.studies.view.standing import StudyView

_PREVIEWED = 10


def request_of(file: Path, folder: Path, options: Mapping[str, Any]) -> StudyRequest:
    """The study that `file` and the command line ask for; what the command line says goes before the file.
    Raises SpecError."""
    asked = read_searchfile(file, folder)
    study, changes = asked.study, parse_standing(options)
    if options.get("trials"):
        study = replace(study, trials=options["trials"])
    if options.get("seed") is not None:
        study = replace(study, seed=options["seed"])
    fixed = pairs.parse_params(options.get("params") or ())
    if fixed:
        study = replace(study, space=_fix(study.space, fixed))
    if options.get("label"):
        changes["label"] = check_label(check_name(options["label"], what="--name"), what="--name")
    trial = asked.trial
    if trial is not None:
        inherited = {key: value for key, value in changes.items() if key != "label"}
        trial = replace(
            trial, params={key: value for key, value in trial.params.items() if key not in fixed}, **inherited
        )
    return StudyRequest(study, replace(asked.run, **changes), trial)


def _fix(space: Space, fixed: Mapping[str, ParamValue]) -> Space:
    """The space with these parameters the same in all trials."""
    kept = [Parameter(p.name, Constant(fixed[p.name])) if p.name in fixed else p for p in space.parameters]
    known = {p.name for p in space.parameters}
    return Space(
        (*kept, *(Parameter(name, Constant(value)) for name, value in fixed.items() if name not in known))
    )


def preview(file: Path, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Check the file, and show the first trials that its searcher proposes. Raises SpecError."""
    from hopyard.searchers.registry import build
    from hopyard.studies.trainable.load import load_attribute

    folder = Path.cwd()
    study = request_of(file, folder, options).study
    searcher = searcher_here(study, where=str(file)) or build(
        study, lambda text: load_attribute(text, folder)
    )
    proposals: list[Proposal] = []
    while len(proposals) < _PREVIEWED and isinstance(proposal := searcher.ask(), Proposal):
        proposals.append(proposal)
    if as_json:
        console.out_json(
            {
                "name": study.name,
                "trials": [
                    {"trial": p.trial, "params": dict(p.params), "budget": p.budget} for p in proposals
                ],
            }
        )
        return
    console.out(
        f"{study.name}: {study.searcher.name}, {study.goal.value} {study.metric}, parallel: "
        f"{study.parallel.value}; the first trials would be"
    )
    for p in proposals:
        console.out(
            f"  trial {p.trial}, {p.budget} {'epoch' if p.budget == 1 else 'epochs'}: "
            f"{params_line(dict(p.params))}"
        )


def start(file: Path, options: Mapping[str, Any], *, detach: bool, as_json: bool) -> int:
    """Submit the study, and unless `detach` follow it.
    The exit code of the command: 0 where it found a best trial."""
    from hopyard.cli.submit import submit

    folder = Path.cwd()
    asked = request_of(file, folder, options)
    if folder == Path("/"):
        raise SpecError(
            "the current folder is /: the whole machine would be packed",
            hints=("cd into the folder of the code; it travels with the study",),
        )
    searcher_here(asked.study, where=str(file))
    client, run = submit(asked.run, folder, spec=asked.spec)
    return finish(client, run, detach=detach, as_json=as_json)


def finish(client: Client, run: dict[str, Any], *, detach: bool, as_json: bool) -> int:
    """Announce a study that was submitted and, unless `detach`, follow it to its end.
    The exit code of the command."""
    tell_remarks(run)
    console.say(f"study {run['name']}  {address(client, run)}  {standing(run)}")
    if detach:
        if as_json:
            console.out_json(
                {
                    "id": run["id"],
                    "name": run["name"],
                    "url": address(client, run),
                    "phase": run["phase"],
                    "run": run,
                }
            )
        elif not console.is_terminal(sys.stdout):
            console.out(run["name"])
        return 0
    return follow(client, run, as_json=as_json)


def searcher_here(study: StudySpec, *, where: str = "") -> Searcher | None:
    """Its searcher, so that what that cannot work with (a grid without end, say) is refused here; None where
    it needs what only the study's environment may have. where: what the study was read from. Raises
    SpecError."""
    from hopyard.domain.searchers import is_own
    from hopyard.searchers.optuna_model import LacksPackage
    from hopyard.searchers.registry import build

    if any(map(is_own, (study.searcher.name, str(study.searcher.options.get("of", ""))))):
        return None
    try:
        return build(study, _no_own)
    except LacksPackage:
        return None
    except SpecError as wrong:
        raise SpecError(f"{where}: {wrong.message}" if where else wrong.message, hints=wrong.hints) from wrong


def _no_own(text: str) -> Any:
    raise AssertionError(f"`{text}` is looked up where the study runs")


def follow(client: Client, run: dict[str, Any], *, as_json: bool) -> int:
    """Follow a study until it ends, and tell what came of it."""
    from hopyard.cli.follow import Follower
    from hopyard.cli.output import OutputGone
    from hopyard.cli.studyscreen import StudyOutput, StudyScreen
    from hopyard.cli.watch import until_the_end

    view = StudyView()
    screen = StudyScreen(view)
    output = StudyOutput(screen, tell=not as_json, continues=run["spec"]["study"].get("continues", ""))
    follower = Follower(client, run, output=output, line=screen, streams=("stderr", "journal"), rank=0)
    try:
        ended = until_the_end(follower, screen)
    except OutputGone:
        raise BrokenPipeError from None
    finally:
        screen.close()
    if ended is not None:
        view.end()
    if as_json:
        from hopyard.studies.view.data import as_data

        now = ended or follower.run
        console.out_json({"study": now["name"], "id": now["id"], "phase": now["phase"], **as_data(view)})
    if ended is None:
        return 130
    if not as_json:
        _last_words(ended, view)
    return exit_code(ended)


def _last_words(ended: dict[str, Any], view: StudyView) -> None:
    trained = any(trial.epoch or trial.error for trial in view.trials.values())
    if trained:
        console.out_lines(heading(view))
        console.out_lines(
            table_of(view, width=console.terminal_width() if console.is_terminal(sys.stdout) else None)
        )
    why = why_failed(ended) or (
        (ended.get("exit") or {}).get("reason", "") if ended["phase"] == "cancelled" else ""
    )
    said = [
        f"{ended['name']} {ended['phase']}" + (f": {why}" if why else ""),
        as_line(view) if trained else "nothing was trained",
    ]
    console.say("; ".join(said))
    best = view.best()
    if best is not None and ended["phase"] == "succeeded":
        console.say(f"hop search show {ended['name']} --trial {best.id}   tells more of the best")
        if ended["spec"]["study"]["parallel"] == "mop":
            console.say(f"hop fork {ended['name']} --checkpoint best   trains it on")


def replay_study(ref: str, trials: tuple[str, ...], *, as_json: bool) -> int:
    """Train again on this machine what the journal recorded, with the study's code, data and interpreter.
    1 where a state differs."""
    import subprocess
    import tempfile

    from hopyard.cli.pull import pull_tree_to
    from hopyard.replica.rendezvous import sdk_folder
    from hopyard.sdk.connect import connect
    from hopyard.studies.journal import encode_record

    client = connect()
    study = client.get(f"/runs/{get_study(client, ref)['id']}")
    spec = study["spec"]
    if spec["study"]["parallel"] != "mop":
        raise SpecError(
            f"the trials of {study['name']} are runs of their own",
            hints=("`hop fork RUN` runs one of them again, from its code, data and environment",),
        )
    if not spec["code"] or not spec["datasets"]:
        raise SpecError(f"{study['name']} has no code or no dataset to train again with")
    with tempfile.TemporaryDirectory(prefix="hopyard-replay-") as name:
        scratch = Path(name)
        pull_tree_to(client, spec["code"], scratch / "code")
        pull_tree_to(
            client,
            next(d["manifest"] for d in spec["datasets"] if d["name"] == spec["study"]["mop"]["dataset"]),
            scratch / "data",
        )
        (scratch / "journal").write_bytes(b"".join(map(encode_record, read_journal(client, study))))
        words = [
            _interpreter(spec),
            "-m",
            "hopyard.studies.again",
            str(scratch / "journal"),
            str(scratch / "code"),
            str(scratch / "data"),
        ]
        if spec["study"].get("beginning"):
            words.append(f"--beginning={_pull_beginning(client, study, scratch / 'saved')}")
        words += [f"--trial={trial}" for trial in trials] + ["--json"] * as_json
        paths = [sdk_folder(Home.default().root), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            words, env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}, check=False
        ).returncode


def _pull_beginning(client: Client, study: dict[str, Any], folder: Path) -> Path:
    """The file with what a fork began with: of its newest checkpoint, or where it has none of the one that it
    was forked from. Raises NotFound."""
    from hopyard.cli.pull import pull_tree_to
    from hopyard.studies.hopper.beginning import states_in

    begin = study_of_json(study["spec"]["study"]).beginning
    assert begin is not None
    own = [
        one
        for one in client.pages(f"/runs/{study['id']}/checkpoints", "checkpoints")
        if not one.get("damaged")
    ]
    pull_tree_to(client, own[-1]["manifest"] if own else study["spec"]["resume"]["manifest"], folder)
    found = states_in({file.name: file for file in folder.iterdir()}, begin).get(begin.kept_as)
    if found is None:
        raise NotFound(f"the state that {study['name']} began with was not saved")
    return found


def _interpreter(spec: Mapping[str, Any]) -> str:
    """The study's own where it is on this machine: other versions of its packages may round otherwise."""
    own = spec["environment"].get("interpreter") or ""
    if own and os.access(own, os.X_OK):
        return str(own)
    console.say(
        "note: the study ran in another environment than this one; other versions of its packages may "
        "give other bits"
    )
    return sys.executable
