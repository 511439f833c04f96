"""A study: one search over a space, and the training of its trials."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space

DEFAULT_BUDGET_PARAM = "epochs"
DEFAULT_RETRIES = 3
# the counts in a study's summary, beside the best value of its metric
COUNT_SUMMARIES = ("trials", "trials_failed")
# keys that a trainable's config sets itself: not allowed as names of parameters
RESERVED_CONFIG_KEYS = ("epoch", "epochs", "params", "seed", "trial")


CONTINUE_EXIT_CODE = 75  # a driver exits with this code to request another attempt: it is not a failure
_DEFAULT_CONCURRENT_TRIALS = 4  # of trials that are runs of their own, by default


class Goal(StrEnum):
    MIN = "min"
    MAX = "max"


class BudgetUnit(StrEnum):
    EPOCHS = "epochs"
    # optimiser steps (batches), as the script numbers them in its reports; of MOP, visits of partitions
    STEPS = "steps"

    @property
    def singular(self) -> str:
        return self.value.removesuffix("s")


class Parallel(StrEnum):
    TRIALS = "trials"  # every trial is a separate run, through the queue
    MOP = "mop"  # trials hop between the workers of one gang; each worker keeps a partition of the data


@dataclass(frozen=True, slots=True)
class SearcherSpec:
    """name: a built-in searcher (`domain.searchers`), or `module:attribute` / `file.py:attribute` of the
    user's own, which is called with (space, goal, trials, max_epochs, seed, **options)."""

    name: str = "random"
    options: Mapping[str, ParamValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """How a dataset version is split, once: equal plans of equal data give equal partitions, byte for byte.

    parts: the number of partitions W. validation: the share of the rows for evaluation, which are split into
    W partitions likewise; or `validation_from`: the folder or file prefix that holds them. stratify: a column
    (or "folder" of image folders) whose values are spread evenly over partitions. columns: only these (() for
    all). files: a glob of the used files ("" for all).
    """

    parts: int
    seed: int = 0
    validation: float = 0.0
    validation_from: str = ""
    stratify: str = ""
    columns: tuple[str, ...] = ()
    files: str = ""
    format: str = ""  # "" derives it from the files: parquet npy npz images tar text


@dataclass(frozen=True, slots=True)
class MopSpec:
    """The settings of MOP.

    trainable: `file.py:Name` or `module:Name` in the code: a class, an instance, or a module (`file.py`
    alone) with init, train and evaluate. dataset: the name that the run mounts. deterministic: bit for bit
    repeatable on the CPU (one thread per worker unless `threads` is set). hybrid: if trials are fewer than
    workers, a trial may use several workers at once. unit_timeout_s: the process of a worker is ended after
    this time on one hop or evaluation, and the unit is retried; 0: far beyond the duration of earlier units.
    order: with `fixed`, the order of partitions and of reports depends on the seed alone, not on durations.
    evaluate_every: the units of the budget from one report of a trial to the next.
    """

    trainable: str
    workers: int
    dataset: str
    partitions: PartitionPlan
    deterministic: bool = True
    threads: int = 0
    hybrid: bool = True
    unit_timeout_s: float = 0.0
    order: str = "free"  # or "fixed"
    evaluate_every: int = 1


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state from which the only trial of a fork starts: the best state of another study.

    run, state: the run whose checkpoint holds it, and its name there. study: the name of the study that
    trained it. trial, epoch, value, params: its trial there, its total epochs (or steps), its metric then,
    and its parameters. visited: the partitions of the epoch that it has begun.
    """

    run: str
    state: str
    study: str
    trial: str
    epoch: int
    value: float
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    visited: tuple[int, ...] = ()

    @property
    def fork_state_name(self) -> str:
        """Its name in the fork. The fork's own states are numbered from 0, like the states of the other
        study."""
        return f"begin-{hashlib.blake2b(f'{self.run}/{self.state}'.encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a study ends before its last trial. time_s: seconds since its start. target: a value of the metric
    that is good enough. patience: ended trials since the best value. None and 0: no such rule."""

    time_s: float = 0.0
    target: float | None = None
    patience: int = 0


@dataclass(frozen=True, slots=True)
class StudySpec:
    """Everything that decides what a study does: the same spec on the same data gives the same study.

    metric: the name that trials report (`hop.log(val_acc=…, step=epoch)`, or a key of the result of
    `evaluate`). trials: the maximum number; None if the searcher knows it (grid, Hyperband). concurrent: how
    many are trained at a time (trials), or are alive at a time (mop); 0: four, or twice the workers.
    max_epochs: the largest budget of a trial, in units of `budget_unit`. budget_given: the user set it, so
    that also a budget of 1 is passed to the script. steps_per_epoch: (trials) the steps of a report in one
    epoch; 0: unknown. budget_param: (trials) the parameter that passes the
    budget to a trial's script. retries: (trials) how often a trial that was killed resumes from its
    newest checkpoint. retry_errors: (trials) how often a trial that failed with an error does.
    max_failures: the study fails with more failed trials; None: if all of the first trials fail. stop:
    when it ends early. points: params of the first trials.
    trial: (trials) the RunSpec of a trial as JSON, without params; each trial's run
    is this with its params and budget.
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
    budget_given: bool = False
    seed: int = 0
    budget_param: str = DEFAULT_BUDGET_PARAM
    budget_unit: BudgetUnit = BudgetUnit.EPOCHS
    steps_per_epoch: int = 0
    retries: int = DEFAULT_RETRIES
    retry_errors: int = 0
    max_failures: int | None = None
    stop: StopRules = StopRules()
    points: tuple[Mapping[str, ParamValue], ...] = ()
    trial: Mapping[str, Any] | None = None
    mop: MopSpec | None = None
    tensorboard: bool = False
    mlflow: str = ""  # tracking URI of an MLflow server to mirror to
    # of a fork that continues the training of another study's best model: from its epoch up to `max_epochs`
    beginning: InitialState | None = None
    # the run of the study that this one continues, with its journal and its states
    continues: str = ""

    @property
    def has_budget(self) -> bool:
        """Whether scripts of trials get a budget. Otherwise a trial is one execution of its script,
        unchanged."""
        return self.budget_given or self.max_epochs > 1

    @property
    def max_live_trials(self) -> int:
        """The limit of trials that are alive at a time."""
        return self.concurrent or (
            2 * self.mop.workers if self.mop is not None else _DEFAULT_CONCURRENT_TRIALS
        )
