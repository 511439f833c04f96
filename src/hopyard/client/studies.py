"""Studies from Python: `hop.search(…)` starts one, `hop.study(REF)` finds one.

study = hop.search("train.py", space={"lr": "loguniform(1e-4, 1e-1)"}, metric="val_acc", trials=20, epochs=10)
study.wait()
print(study.best)
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.client.checkpoint_lookup import is_resumable
from hopyard.client.default_searcher import with_default_searcher
from hopyard.client.feedback import print_notice
from hopyard.client.local_searcher import build_searcher
from hopyard.client.param_forms import OBJECTIVE_MODULE, with_trial_format
from hopyard.client.run_lookup import get_study_spec
from hopyard.client.stop_trial import stop_trial
from hopyard.client.study_lookup import get_study, read_journal
from hopyard.client.submit import submit_run
from hopyard.config.search.search_file import search_from_mapping
from hopyard.domain.ids import new_run_id, slug
from hopyard.errors import NotFound, SpecError, StudyFailed
from hopyard.studies.view.study_data import as_data, importance_of, trial_data
from hopyard.studies.view.study_view import StudyView, TrialView

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_POLL_INTERVAL_RANGE_S = (0.2, 2.0)  # at first, and at most
_FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of a study, as of the study's last `refresh`.

    params: of `study.best`, those that its best value was trained with; else the newest. value: the metric as
    reported last. best: its best value, reached after `best_epoch` epochs with `best_params`. points: (epoch,
    value). run: the name of a trial that is a run of its own.
    """

    id: str
    params: Mapping[str, Any]
    state: str
    epoch: int
    value: float | None
    best: float | None
    best_epoch: int
    best_params: Mapping[str, Any]
    points: Sequence[tuple[int, float]]
    metrics: Mapping[str, float]
    run: str
    error: str


class Study:
    """A study on the server. Its properties are as of the last `refresh`; `wait` refreshes, too."""

    def __init__(self, client: Client, run: api.RunOut) -> None:
        self._client, self._run = client, run
        self._view = StudyView()
        self.refresh()

    @property
    def id(self) -> str:
        return str(self._run["id"])

    @property
    def name(self) -> str:
        """The name of its run: `alice/digits/12`."""
        return str(self._run["name"])

    @property
    def phase(self) -> str:
        """The phase of its run: queued, starting, running, stopping, succeeded, failed or cancelled."""
        return str(self._run["phase"])

    @property
    def done(self) -> bool:
        return self.phase in _FINAL

    @property
    def trials(self) -> list[Trial]:
        """All trials, the best first."""
        return [_trial_from_view(trial) for trial in self._view.ranked()]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value of the metric at any epoch; None while there is none."""
        trial = self._view.best()
        if trial is None:
            return None
        found = _trial_from_view(trial)
        return replace(found, params=found.best_params)

    @property
    def importance(self) -> dict[str, float]:
        """The share of the metric's spread that each parameter explains; empty if there are too few
        results."""
        return importance_of(self._view)

    def refresh(self) -> Study:
        """Reads the study from the server."""
        self._run = self._client.get_run(self.id)
        self._view = StudyView.from_records(read_journal(self._client, self._run))
        if self.done:
            self._view.mark_ended()
        return self

    def wait(self, timeout_s: float | None = None) -> Study:
        """Waits until the study ends.

        Raises TimeoutError after `timeout_s` seconds (the study continues), StudyFailed if it failed or was
        stopped.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        pause, longest = _POLL_INTERVAL_RANGE_S
        while not self.done:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{self.name} is still {self.phase} after {timeout_s:g} s")
            time.sleep(pause)
            pause = min(longest, pause * 1.3)
            self._run = self._client.get_run(self.id)
        self.refresh()
        if self.phase != "succeeded":
            reason = exit_["reason"] if (exit_ := self._run.get("exit")) else ""
            raise StudyFailed(f"{self.name} {self.phase}: {reason}", hints=(f"hop logs {self.name}",))
        return self

    def stop(self, *, trial: int | str | None = None, grace_s: float = 10.0) -> Study:
        """Stops the study and its trials.

        trial: stops only this trial. Its values count, and it is no failure; the study continues. Raises
        NotFound for an unknown trial, SpecError for one that does not train.
        """
        self.refresh()
        if trial is None:
            self._client.stop_run(self.id, {"grace_s": grace_s})
        else:
            stop_trial(self._client, self._run, self._find_trial(trial), grace_s=grace_s)
        return self.refresh()

    def resume(
        self,
        *,
        trials: int | None = None,
        folder: Path | str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        trust: bool = False,
    ) -> Study:
        """Resumes a study that has ended, and returns the new run as a study.

        Only unfinished work is repeated. trials: the maximum number in all. folder: code that replaces the
        study's. queue, priority: others than the study's. env, secrets: changed variables, and names of
        secrets, of the new run. trust: reads all of another user's states, as in `best_state`. Raises
        Conflict if the study has not ended, or has finished and no more trials are requested; SpecError if
        its searcher cannot propose more.
        """
        from hopyard.client.resume_study import resume_study

        code = None if folder is None else Path(folder).resolve()
        return Study(
            *resume_study(
                self._client,
                self.refresh()._run,
                trials=trials,
                code=code,
                queue=queue,
                priority=priority,
                env=env,
                secrets=secrets,
                trust=trust,
            )
        )

    def fork(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        epochs: int | None = None,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
    ) -> Study:
        """Trains its best model further (`parallel: mop`), in a study of one trial on all workers.

        params: changes to the best trial's parameters. epochs: how many more, by default as many as the
        study's; their numbers continue. queue, priority: others than the study's. Raises NotFound where no
        best model was saved yet; SpecError for parameters that the study does not have, and where trials are
        runs of their own.
        """
        body: api.ForkIn = {
            "id": new_run_id(datetime.now(UTC), os.urandom(7)),
            "checkpoint": "best",
            "params": dict(params or {}),
            "epochs": epochs,
            "label": None if name is None else slug(name, fallback="search"),
            "queue": queue,
            "priority": priority,
        }
        return Study(self._client, self._client.fork_run(self.id, body, plan=1))

    def trial(self, number: int | str) -> Trial:
        """Returns the trial with this number. Raises NotFound."""
        return _trial_from_view(self._find_trial(number))

    def schedule(self, number: int | str) -> list[dict[str, Any]]:
        """Returns the parameters that the state of this trial was trained with, in order: of population based
        training, the schedule that it has found. Each entry has `from_epoch`, `trial`, `params` and
        `copied`, the trial that the state was copied from, or None. Raises NotFound."""
        fields = trial_data(self._view, self._find_trial(number))
        return list(fields["schedule"])

    def gantt(self, epochs: tuple[int, int] | None = None) -> dict[str, Any]:
        """Returns the trials on workers over time, as `hop search gantt --json` prints them, of a study with
        `parallel: mop`. epochs: the first and the last, counted from 0."""
        from hopyard.studies.view.gantt import as_data as chart_data
        from hopyard.studies.view.gantt import gantt

        return {"study": self.name, **chart_data(gantt(self._view, epochs=epochs))}

    def _find_trial(self, number: int | str) -> TrialView:
        trial = self._view.trials.get(str(number))
        if trial is None:
            raise NotFound(f"{self.name} has no trial {number}")
        return trial

    def best_state(self, trainable: Any = None, *, trust: bool = False) -> Any:
        """Returns the state of the best trial at its best epoch.

        If trials are separate runs, that is a dictionary with the state of each object that the script has
        bound (`hop.bind(model=model)`: the `state_dict`). With `parallel: mop` it is the result of
        `train`, or the captured state of a trainable that captures states (`hop.TorchTrainable`).
        trainable: returns the state with its model. trust: reads all of another user's state. Without it
        only tensors, arrays and plain values are read, since anything else runs code of its author in this
        process. Raises NotFound if the study has saved no state yet; SpecError for a value that was not
        read.
        """
        import tempfile

        from hopyard.client.download import download_tree
        from hopyard.studies.view.best import find_best, read_state

        if get_study_spec(self._run)["parallel"] != "mop":
            from hopyard.client.best_trial import read_best_objects

            return read_best_objects(self._client, self._view, untrusted=not trust and self._is_other_users())
        checkpoints = [
            checkpoint
            for checkpoint in self._client.iterate_run_checkpoints(self.id)
            if is_resumable(checkpoint)
        ]
        if not checkpoints:
            raise NotFound(f"{self.name} has saved no state yet")
        with tempfile.TemporaryDirectory(prefix="hopyard-state-") as scratch:
            folder = Path(scratch) / "checkpoint"
            download_tree(
                self._client, max(checkpoints, key=lambda checkpoint: checkpoint["step"])["manifest"], folder
            )
            best = find_best(read_journal(self._client, self._run), folder)
            return read_state(best, trainable, self._view, untrusted=not trust and self._is_other_users())

    def best_model(self, model: Any = None, *, trust: bool = False) -> Any:
        """Returns the model of the best trial at its best epoch, ready to predict.

        If trials are separate runs, `model` is a new model of the same form. It gets the weights that the
        script has bound as `model`. With `parallel: mop`, `model` is the trainable; None loads the study's
        own from the current folder. The result is the module of a `hop.TorchTrainable`, the model of a
        `hop.KerasTrainable`, or the state of any other trainable. trust, and the exceptions: as in
        `best_state`; SpecError if the current folder does not have the trainable.
        """
        mop = get_study_spec(self._run).get("mop")
        if mop is None:
            from hopyard.client.best_trial import fill_best_model

            return fill_best_model(model, self.best_state(trust=trust))
        from hopyard.studies.view.best import best_config, model_of
        from hopyard.trainables.load import load

        trainable = load(mop["trainable"], Path.cwd()) if model is None else model
        state = self.best_state(trainable, trust=trust)
        return model_of(trainable, state, best_config(self._view))

    def _is_other_users(self) -> bool:
        """Returns whether another user's code made its states: the study is another user's, or began with
        states of one."""
        resume = self._run["spec"].get("resume")
        return bool(
            self.name.partition("/")[0] != self._client.get_status()["user"]
            or (resume is not None and resume.get("foreign"))
        )

    def data(self) -> dict[str, Any]:
        """Returns the study as `hop search show --json` prints it."""
        return as_data(self._view)

    def table(self) -> list[dict[str, Any]]:
        """Returns a row for each trial, for `pandas.DataFrame(study.table())`."""
        rows = []
        for trial in self._view.ranked():
            fields = trial_data(self._view, trial)
            rows.append(
                {key: fields[key] for key in ("trial", "state", "epoch", "value", "best", "best_epoch")}
                | dict(trial.best_params or trial.params)
            )
        return rows

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __repr__(self) -> str:
        best = self.best
        shown = (
            f", best {self._view.metric} {best.best:.4g}"
            if best is not None and best.best is not None
            else ""
        )
        return f"Study({self.name!r}, {self.phase}, {len(self._view.trials)} trials{shown})"


def search(
    what: str | type | Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    folder: Path | str | None = None,
    **settings: Any,
) -> Study:
    """Starts a study, and returns it at once.

    what: a script (`"train.py"`: every trial is a run of it); an objective, which is a function of the
    parameters that returns or yields values of the metric (every trial is a run of it, too); or a
    trainable of a file that can be imported: a class, an instance, or a text such as `"train.py:Digits"`
    (trials hop between `workers`, each of which has a part of `dataset`). With `workers`, `"train.py"` is
    a file that has the functions init, train and evaluate.

    settings: the keys of a search.yaml (docs/reference/search-file.md): space, metric, goal, searcher,
    trials, epochs, concurrent, workers, dataset, partitions, resources, queue … ; a space may hold objects of
    Optuna and Ray Tune. folder: the code that travels with the study, by default the current folder. Raises
    SpecError for the errors of a search file, before anything is submitted.
    """
    code = Path(folder or Path.cwd()).resolve()
    request = search_from_mapping(
        {
            **_search_mapping(
                what,
                code,
                hops=settings.get("parallel") == "mop" or "workers" in settings,
                metric=str(settings.get("metric", "")),
            ),
            **settings,
        },
        code,
        path="hop.search",
        name=slug(name or code.name, fallback="search"),
    )
    if name is not None:
        request = replace(
            request,
            study=replace(request.study, name=slug(name, fallback="search")),
            run=replace(request.run, label=slug(name, fallback="search")),
        )
    if os.environ.get("HOPYARD_RUN_ID") and inspect.isfunction(what):
        raise SpecError(
            "hop.search was called by a trial of a study",
            hints=('call it under `if __name__ == "__main__":`, because trials import the file',),
        )
    request = with_default_searcher(request, notify=print_notice)
    build_searcher(request.study, source_name="hop.search")
    request = with_trial_format(request, code, notify=print_notice)
    client, run = submit_run(request.run, code, spec=request.spec, trial=request.trial)
    return Study(client, run)


def study(ref: str = "") -> Study:
    """Returns the study with this id, name, number or label; without one the newest of your own.

    Raises NotFound, and SpecError for a run that is no study.
    """
    client = connect()
    return Study(client, get_study(client, ref))


def _search_mapping(search: Any, folder: Path, *, hops: bool, metric: str) -> dict[str, Any]:
    """Returns the script, objective or trainable as a search file has it. hops: whether trials hop between
    workers: a file then has the functions of a trainable."""
    if search is None:
        return {}
    if isinstance(search, str):
        return (
            {"script": search} if search.endswith((".py", ".ipynb")) and not hops else {"trainable": search}
        )
    if inspect.isfunction(search):
        reference = _code_reference(search, folder)
        if ".py:" not in reference:
            raise SpecError(
                f"`{reference}` is outside {folder}, so it does not travel with the study",
                hints=("give the folder of its file: hop.search(…, folder=…)",),
            )
        return {"command": ["python", "-u", "-m", OBJECTIVE_MODULE, reference, metric]}
    return {"trainable": _code_reference(search if inspect.isclass(search) else type(search), folder)}


def _code_reference(target: type | Callable[..., Any], folder: Path) -> str:
    """Returns `file.py:Name` for a class or function: trials read it from the code that travels with the
    study."""
    if "<locals>" in target.__qualname__ or "<lambda>" in target.__qualname__:
        raise SpecError(
            f"`{target.__qualname__}` is made inside a function or expression, where trials cannot find it",
            hints=("define it at the top of a file",),
        )
    module = sys.modules.get(target.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        raise SpecError(
            f"`{target.__qualname__}` is defined in no file",
            hints=("write it into a .py file beside the notebook and import it from there",),
        )
    path = Path(file).resolve()
    if not path.is_relative_to(folder):
        return f"{target.__module__}:{target.__qualname__}"
    return f"{path.relative_to(folder)}:{target.__qualname__}"


def _trial_from_view(view: TrialView) -> Trial:
    return Trial(
        view.id,
        dict(view.params),
        view.state.value,
        view.epoch,
        view.value,
        view.best,
        view.best_epoch,
        dict(view.best_params),
        tuple(view.points),
        dict(view.metrics),
        view.run_name or view.run,
        view.error,
    )
