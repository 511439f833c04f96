"""The rules of a study that its shape cannot state: its space, its searcher, and the keys of MOP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.config.limits import MAX_EPOCHS
from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.searchers import check_options, get_searcher, is_custom, requires_trials
from hopyard.domain.space import check_space
from hopyard.domain.study import RESERVED_CONFIG_KEYS, BudgetUnit, MopSpec, Parallel, StudySpec
from hopyard.errors import SpecError

PARTITION_FORMATS = ("parquet", "npy", "npz", "images", "tar", "text")
_MIN_UNIT_TIMEOUT_S = 1.0


def check_parallel(study: StudySpec) -> None:
    """Raises SpecError unless the study has `trial` or `mop`, as its value of `parallel` needs, and not the
    other."""
    if study.parallel is Parallel.TRIALS and (study.trial is None or study.mop is not None):
        raise SpecError(
            "study.trial: required, but absent",
            hints=("set `trial` and remove `mop`: `parallel: trials` needs this",),
        )
    if study.parallel is Parallel.MOP and (study.mop is None or study.trial is not None):
        raise SpecError(
            "study.mop: required, but absent",
            hints=("set `mop` and remove `trial`: `parallel: mop` needs this",),
        )


def check_new_study(study: StudySpec, params: Mapping[str, Any]) -> None:
    """Checks a study that a user submits. `params` are those that all of its trials have.

    Forks and continuations inherit the study of an earlier version, and are not checked again. Raises
    SpecError naming the path.
    """
    check_space(study.space, "study.space")
    _check_parameter_names(study, params)
    _check_searcher(study)
    if study.metric != study.metric.strip():
        raise SpecError(
            f"study.metric: `{study.metric}` is not the name of a metric",
            hints=("remove the spaces around it",),
        )
    if study.seed < 0:
        raise SpecError(f"study.seed: `{study.seed}` is not a whole number from 0 to {2**63 - 1}")
    if study.budget_unit is BudgetUnit.EPOCHS and study.max_epochs > MAX_EPOCHS:
        raise SpecError(
            f"study.max_epochs: `{study.max_epochs}` is not a whole number from 1 to {MAX_EPOCHS}"
        )
    if study.mlflow and not study.mlflow.startswith(("http://", "https://")):
        raise SpecError(
            f"study.mlflow: `{study.mlflow}` is not the address of an MLflow server",
            hints=("for example http://mlflow.example.com:5000",),
        )
    if study.mop is not None:
        _check_mop(study.mop)


def _check_parameter_names(study: StudySpec, params: Mapping[str, Any]) -> None:
    for parameter in study.space.parameters:
        name = parameter.name
        if name in params:
            raise SpecError(
                f"params.{name}: `{name}` is searched, and fixed as well",
                hints=("keep it in `space` or in `params`",),
            )
        if study.parallel is Parallel.TRIALS and name == study.budget_param:
            raise SpecError(
                f"study.space.{name}: the study tells trials their `{name}` itself",
                hints=(
                    "remove it from the space, and set the number of epochs with `epochs`; or choose "
                    "another parameter with `budget_param`",
                ),
            )
        if study.parallel is Parallel.MOP and name in RESERVED_CONFIG_KEYS:
            raise SpecError(
                f"study.space.{name}: a trainable's config has its own `{name}`",
                hints=(f"rename the parameter, for example `my_{name}`",),
            )


def _check_searcher(study: StudySpec) -> None:
    searcher = study.searcher
    if is_custom(searcher.name):
        return
    get_searcher(searcher.name, "study.searcher.name")
    options = check_options(searcher.name, searcher.options, "study.searcher")
    if study.trials is not None and len(study.points) > study.trials:
        raise SpecError(
            f"study.points: {len(study.points)} points, but `trials: {study.trials}`",
            hints=("raise `trials`, or remove points: each point is a trial",),
        )
    if study.trials is None and requires_trials(searcher.name, searcher.options):
        raise SpecError(
            "study.trials: missing",
            hints=(f"`{searcher.name}` proposes trials without end: set their number, as in `trials: 100`",),
        )
    eta, lowest = options.get("eta"), options.get("min_epochs")
    if isinstance(eta, int) and isinstance(lowest, int):
        try:
            rung_budgets(study.max_epochs, lowest, eta)
        except SpecError as refused:
            raise SpecError(f"study.{refused.message}", hints=refused.hints) from refused


def _check_mop(mop: MopSpec) -> None:
    plan, path = mop.partitions, "study.mop.partitions"
    if plan.parts < mop.workers:
        plural = "s" if plan.parts > 1 else ""
        raise SpecError(
            f"{path}.parts: {plan.parts} partition{plural} for {mop.workers} workers: some would have "
            "nothing to train on",
            hints=(f"at least as many as workers: `parts: {mop.workers}`",),
        )
    if plan.validation and plan.validation_from:
        raise SpecError(
            f"{path}.validation_from: a share of the rows is kept for validation already",
            hints=("keep one of the two",),
        )
    if plan.format and plan.format not in PARTITION_FORMATS:
        raise SpecError(
            f"{path}.format: there is no format `{plan.format}`",
            hints=unknown_name_hints(plan.format, PARTITION_FORMATS),
        )
    for index, column in enumerate(plan.columns):
        if column in plan.columns[:index]:
            raise SpecError(f"{path}.columns.{index}: `{column}` is named twice")
    if plan.seed < 0:
        raise SpecError(f"{path}.seed: `{plan.seed}` is not a whole number from 0 to {2**63 - 1}")
    if 0 < mop.unit_timeout_s < _MIN_UNIT_TIMEOUT_S:
        raise SpecError(
            f"study.mop.unit_timeout_s: {mop.unit_timeout_s:g} seconds would end every unit",
            hints=("give a second or more, better many times the duration of a unit: `unit_timeout: 10m`",),
        )
