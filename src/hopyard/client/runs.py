"""Runs from Python: `hop.submit(…)` starts one, `hop.get_run(REF)` finds one, `hop.runs(…)` lists them.

run = hop.submit("train.py", dataset="mnist", params={"lr": 0.1}, gpus=1)
run = run.wait()
print(run.phase, run.latest_metrics, run.logs(tail=20))
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.client.build_run import build_request, check_code_folder, find_interpreter, target_folder
from hopyard.client.checkpoint_lookup import CheckpointChoice
from hopyard.client.feedback import print_notice
from hopyard.client.param_forms import with_param_format
from hopyard.client.run_evaluator import submit_evaluator
from hopyard.client.run_lookup import fetch_runs
from hopyard.client.run_lookup import get_run as find_run
from hopyard.client.submit import submit_run
from hopyard.config.key_values import Value, check_key, check_variable
from hopyard.config.run_request import RunRequest
from hopyard.domain.metric_values import decode_value
from hopyard.domain.run import RunPhase
from hopyard.domain.text import check_line
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_POLL_INTERVAL_RANGE_S = (0.2, 2.0)  # at first, and at most
_FINAL = frozenset(phase for phase in RunPhase if phase.is_final)
_PARTS = ("code", "checkpoint", "files", "logs")


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of a metric, which may be NaN or infinite. time: Unix seconds."""

    step: int
    value: float
    time: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was when this record was read; `refresh` reads a new one.

    name: `user/project/number`. phase: queued, starting, running, stopping, succeeded, failed or cancelled.
    latest_metrics: the newest value of each metric. summary: the results of the whole run. Both may
    have NaN and infinite values. wait_reason: why it is queued. exit_code, exit_reason: of a run that has
    ended.
    The records of `runs` hold only the first parameters, tags and metrics; `refresh` reads all.
    """

    id: str
    name: str
    label: str
    phase: str
    params: Mapping[str, Value]
    latest_metrics: Mapping[str, float]
    summary: Mapping[str, float]
    tags: Mapping[str, str]
    queue: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    wait_reason: str
    exit_code: int | None
    exit_reason: str
    _client: Client = field(repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.phase in _FINAL

    @property
    def succeeded(self) -> bool:
        return self.phase == "succeeded"

    def refresh(self) -> Run:
        """Returns the run as it is now."""
        return _from_json(self._client, self._client.get_run(self.id))

    def wait(self, timeout_s: float | None = None) -> Run:
        """Waits until the run ends, and returns it as it ended, failed or not.

        Raises TimeoutError after `timeout_s` seconds; the run continues.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pause, longest = _POLL_INTERVAL_RANGE_S
        run = self.refresh()
        while not run.ended:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{self.name} is still {run.phase} after {timeout_s:g} s")
            time.sleep(pause)
            pause = min(longest, pause * 1.3)
            run = self.refresh()
        return run

    def follow(self, *, rank: int | None = None) -> Run:
        """Prints the output of the run until the run ends, and returns it as it ended, failed or not.

        rank: of the only replica to print; by default all are printed. Waits for a server that restarts.
        Ctrl-C raises KeyboardInterrupt; the run continues.
        """
        from hopyard.client.console_listener import ConsoleListener
        from hopyard.client.follow import RunFollower

        run = self._client.get_run(self.id)
        follower = RunFollower(self._client, run, ConsoleListener(), rank=rank)
        return _from_json(follower.client, follower.follow())

    def stop(self, *, grace_s: float = 10.0) -> Run:
        """Stops the run, and returns it as it is then. A run that has ended stays as it is.

        grace_s: how long its script may take to save before it is killed.
        """
        run = self.refresh()
        if run.ended:
            return run
        self._client.stop_run(self.id, {"grace_s": grace_s})
        return self.refresh()

    def logs(self, *, stream: str = "stdout", rank: int = 0, tail: int | None = None) -> str:
        """Returns the output of one replica on `stdout` or `stderr`.

        rank: of the replica. tail: returns only so many lines at the end.
        """
        query: dict[str, str | int | None] = {"stream": stream, "rank": rank, "tail_lines": tail}
        with self._client.open("GET", f"/runs/{self.id}/log", query=query) as response:
            return response.read().decode(errors="replace")

    def metrics(self, name: str, *, rank: int | None = None) -> list[MetricPoint]:
        """Returns all values of a metric in the order of their steps; none for an unknown metric."""
        pages = self._client.iterate_run_metrics(self.id, names=name, rank=rank)
        series = dict(pages).get(name)
        if series is None:
            return []
        columns = (series["steps"], map(decode_value, series["values"]), series["times"])
        return [MetricPoint(*row) for row in zip(*columns, strict=True)]

    def pull(
        self,
        dest: Path | str | None = None,
        *,
        parts: Sequence[str] = _PARTS,
        step: CheckpointChoice = None,
        force: bool = False,
    ) -> Path:
        """Downloads parts of the run into a folder, and returns the folder.

        dest: by default a new folder with the run's name. parts: of code, checkpoint, files, logs, metrics.
        step: of the checkpoint, or "best"; by default the newest. force: whether to write into a folder that
        holds something.
        Raises SpecError where `dest` cannot be written, NotFound for a step without a checkpoint.
        """
        from hopyard.client.pull import pull_run

        unknown = [part for part in parts if part not in _PARTS]
        if unknown:
            raise SpecError(
                f"parts: `{unknown[0]}` is not a part of a run", hints=(f"name some of {', '.join(_PARTS)}",)
            )
        run = self._client.get_run(self.id)
        into = None if dest is None else Path(dest)
        return pull_run(self._client, run, into, [p for p in _PARTS if p in parts], step=step, force=force)


def submit(
    what: str,
    /,
    *,
    arguments: Sequence[str] = (),
    dataset: str | Sequence[str] = (),
    params: Mapping[str, Value] | None = None,
    params_as: str | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    name: str | None = None,
    cpus: float | str | None = None,
    memory: str | None = None,
    gpus: float | str | None = None,
    gpu_memory: str | None = None,
    replicas: int | str | None = None,
    nodes: int | None = None,
    private_folders: bool = False,
    launcher: str | None = None,
    processes: int | None = None,
    checkpoints: str | Sequence[str] = (),
    resume_args: str | Sequence[str] = (),
    keep: str | None = None,
    ports: Sequence[int | str] = (),
    on_end: str | Sequence[str] = (),
    queue: str | None = None,
    priority: int | None = None,
    time_limit: float | str | None = None,
    requirements: Path | str | None = None,
    image: str | None = None,
    container: bool = False,
    network: str | None = None,
    python: str | None = None,
    project: str | None = None,
    start_from: str | None = None,
    folder: Path | str | None = None,
) -> Run:
    """Submits a run and returns it at once, as `hop run --detach` does.

    what: a script (`"train.py"`), a command in PATH, or a `hop.yaml`. arguments: of the script or command.
    folder: the code that travels with the run; by default the current folder. The other parameters have the
    names and the forms of the options of `hop run`; `time_limit` is `--time`, in seconds or as `"2h"`, and
    `start_from` is `--from`, `resume_args` is `--resume-arg`, and `keep` is a text as of `--keep`.
    Raises SpecError for the errors of `hop run`, before anything is submitted.
    """
    here = Path(folder or Path.cwd()).resolve()
    if folder is not None and what.endswith((".yaml", ".yml")):
        what = str(here / what)
    options = {
        "datasets": (dataset,) if isinstance(dataset, str) else tuple(dataset),
        "secrets": tuple(secrets),
        "params_as": params_as,
        "label": name,
        "cpus": _option_text(cpus),
        "memory": memory,
        "gpus": _option_text(gpus),
        "gpu_memory": gpu_memory,
        "replicas": _option_text(replicas),
        "nodes": nodes,
        "private_folders": private_folders,
        "launcher": launcher,
        "processes": processes,
        "checkpoint_files": (checkpoints,) if isinstance(checkpoints, str) else tuple(checkpoints),
        "ports": tuple(map(str, ports)),
        "on_end": (on_end,) if isinstance(on_end, str) else tuple(on_end),
        "resume_arguments": (resume_args,) if isinstance(resume_args, str) else tuple(resume_args),
        "retention": keep,
        "queue": queue,
        "priority": priority,
        "time": _option_text(time_limit),
        "requirements": None if requirements is None else here / requirements,
        "image": image,
        "container": container,
        "network": network,
        "python": python,
        "project": project,
    }
    request = build_request(what, tuple(map(str, arguments)), here, options)
    request = _with_mappings(request, params or {}, env or {}, tags or {})
    code = target_folder(what, here)
    check_code_folder(code)
    formatted = with_param_format(request, code, notify=print_notice)
    interpreter = find_interpreter(python)
    client, run = submit_run(formatted, code, interpreter=interpreter, start_from=start_from)
    submit_evaluator(request, run, code, interpreter=interpreter)
    return _from_json(client, run)


def get_run(ref: str = "last") -> Run:
    """Returns the run that `ref` names: an id, a name, a number, a label, or `last`, the newest of your own.

    Raises NotFound with close names.
    """
    client = connect()
    return _from_json(client, client.get_run(find_run(client, ref)["id"]))


def runs(
    *,
    phase: str | Sequence[str] = (),
    user: str | None = None,
    project: str | None = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    dataset: str | None = None,
    parent: str | None = None,
    trials: bool = False,
    limit: int | None = 50,
) -> list[Run]:
    """Returns the newest runs that match, the newest first.

    phase: one or several; all by default. name: a label. parent: only the trials of this study. trials: also
    the runs of trials. limit: None returns all.
    """
    client = connect()
    study = None if parent is None else str(find_run(client, parent)["id"])
    listed = fetch_runs(
        client,
        phases=(phase,) if isinstance(phase, str) else tuple(phase),
        tags=dict(tags or {}),
        limit=limit,
        user=user,
        project=project,
        label=name,
        dataset=dataset,
        parent=study,
        trials=int(trials or bool(tags) or study is not None),
    )
    return [_from_json(client, run) for run in listed]


def _with_mappings(
    request: RunRequest, params: Mapping[str, Value], env: Mapping[str, str], tags: Mapping[str, str]
) -> RunRequest:
    """Returns the request with more parameters, variables and tags. Raises SpecError."""
    for key, value in params.items():
        check_key(key, what="params")
        if isinstance(value, float) and not math.isfinite(value):
            raise SpecError(f"params: `{key}` is not a finite number", hints=(f'give a text: "{value}"',))
        if not isinstance(value, str | int | float | bool | None):
            raise SpecError(
                f"params: `{key}` is of type {type(value).__name__}",
                hints=("a parameter is a number, a text, True, False or None",),
            )
    for key, text in env.items():
        check_variable(key, what="env")
        if not isinstance(text, str):
            raise SpecError(f"env: `{key}` is of type {type(text).__name__}", hints=("give a text",))
    for key, text in tags.items():
        check_key(key, what="tags")
        check_line(str(text), subject="tags")
    return replace(
        request,
        params={**request.params, **params},
        env={**request.env, **env},
        tags={**request.tags, **{key: str(text) for key, text in tags.items()}},
    )


def _option_text(value: float | str | None) -> str | None:
    return None if value is None else str(value)


def _from_json(client: Client, run: api.RunOut) -> Run:
    exit_: Mapping[str, Any] = run.get("exit") or {}
    return Run(
        id=run["id"],
        name=run["name"],
        label=run["spec"].get("label") or "",
        phase=run["phase"],
        params=run["params"] or run["spec"].get("params") or {},
        latest_metrics={name: decode_value(pair[1]) for name, pair in (run.get("latest") or {}).items()},
        summary={name: decode_value(value) for name, value in run["summary"].items()},
        tags=run["spec"].get("tags") or {},
        queue=run["spec"].get("queue") or "",
        created_at=datetime.fromisoformat(run["submitted_at"]),
        started_at=_moment(run["started_at"]),
        ended_at=_moment(run["ended_at"]),
        wait_reason=run.get("hold_detail") or "",
        exit_code=exit_.get("code"),
        exit_reason=exit_.get("reason", ""),
        _client=client,
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
