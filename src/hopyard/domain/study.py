"""A study: one search over a space, and how its trials are trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space

DEFAULT_BUDGET_PARAM = "epochs"
COUNT_SUMMARIES = (
    "trials",
    "trials_failed",
)  # what a study's summary counts, beside the best value of its metric
# what a trainable's config says itself: no names for parameters
RESERVED_CONFIG_KEYS = ("epoch", "epochs", "params", "seed", "trial")


CONTINUE_EXIT_CODE = 75  # with this code a driver asks for another attempt: nothing that it did was wrong
_DEFAULT_CONCURRENT_TRIALS = 4  # trials that are runs of their own, where nobody says how many


class Goal(StrEnum):
    MIN = "min"
    MAX = "max"


class Parallel(StrEnum):
    TRIALS = "trials"  # every trial is a run of its own, through the queue
    MOP = "mop"  # trials hop between the workers of one gang, each of which keeps a partition of the data


@dataclass(frozen=True, slots=True)
class SearcherSpec:
    """name: a built-in one (`search.registry`), or `module:attribute` / `file.py:attribute` of the user's
    own, which is called with (space, goal, trials, max_epochs, seed, **options)."""

    name: str = "random"
    options: Mapping[str, ParamValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """How a dataset version is split, once: equal plans of equal data give equal partitions, byte for byte.

    parts: W. validation: share of the rows kept apart for evaluation, split into W partitions likewise; or
    the folder or file prefix that holds them (`validation_from`). stratify: column (or "folder" of image
    folders) whose values are spread alike over partitions. columns: only these (() all). files: glob of the
    files that belong to it ("" all of the data).
    """

    parts: int
    seed: int = 0
    validation: float = 0.0
    validation_from: str = ""
    stratify: str = ""
    columns: tuple[str, ...] = ()
    files: str = ""
    format: str = ""  # "" told from the files: parquet npy npz images tar text


@dataclass(frozen=True, slots=True)
class MopSpec:
    """What only MOP needs. trainable: `file.py:Name` or `module:Name` in the code: a class, an instance, or a
    module (`file.py` alone) with init, train and evaluate. dataset: the name that the run mounts.
    deterministic: bit for bit repeatable on the CPU (one thread a worker unless `threads` says otherwise).
    hybrid: trials fewer than workers may use several workers at once. unit_timeout_s: after so long on one
    hop or evaluation a worker's process is ended, and the unit repeated; 0: far beyond what such units took
    before."""

    trainable: str
    workers: int
    dataset: str
    partitions: PartitionPlan
    deterministic: bool = True
    threads: int = 0
    hybrid: bool = True
    unit_timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InitialState:
    """What the only trial of a fork begins with: the best state of another study.

    run, state: in whose checkpoint it lies, and its name there. study: the name of the study that trained it;
    trial, epoch, value, params: of which trial of that, after how many epochs in all, what the metric was
    then, what it was trained with.
    """

    run: str
    state: str
    study: str
    trial: str
    epoch: int
    value: float
    params: Mapping[str, ParamValue] = field(default_factory=dict)

    @property
    def fork_state_name(self) -> str:
        """Its name in the fork, whose own states are named as those of the other study were: by numbers that
        begin anew."""
        return f"begin-{hashlib.blake2b(f'{self.run}/{self.state}'.encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class StudySpec:
    """All that decides what a study does: the same spec on the same data gives the same study.

    metric: the name that trials report (`hop.log(val_acc=…, step=epoch)`, or a key of what `evaluate`
    returns). trials: how many at most; None where the searcher knows (grid, Hyperband). concurrent: how many
    are trained at a time (trials), or are alive at a time (mop); 0: four, or twice the workers. max_epochs:
    the largest budget of a trial. budget_param: (trials) the parameter through which a trial's script is told
    its budget.
    trial: (trials) the RunSpec of a trial as JSON, without params; each trial's run is this with its params
    and budget.
    """

    name: str
    space: Space
    metric: str
    goal: Goal
    parallel: Parallel
    searcher: SearcherSpec = SearcherSpec()
    trials: int | None = None
    concurrent: int = 0
    max_epochs: int = 1
    seed: int = 0
    budget_param: str = DEFAULT_BUDGET_PARAM
    trial: Mapping[str, Any] | None = None
    mop: MopSpec | None = None
    tensorboard: bool = False
    mlflow: str = ""  # tracking URI of an MLflow server to mirror to
    # of a fork that trains another study's best model on: from its epoch up to `max_epochs`
    beginning: InitialState | None = None
    # the run of the study that this one goes on with: its journal and its states are this one's too
    continues: str = ""

    @property
    def max_live_trials(self) -> int:
        """How many trials are alive at a time."""
        return self.concurrent or (
            2 * self.mop.workers if self.mop is not None else _DEFAULT_CONCURRENT_TRIALS
        )
