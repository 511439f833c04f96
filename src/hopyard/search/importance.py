"""Which parameters a metric depends on, told from the trials of a study by Optuna."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.errors import SpecError
from hopyard.search.optuna_model import load_optuna, quiet
from hopyard.search.optuna_space import Axis, axes

FEWEST = 4  # trials, below which nothing can be told
METHODS = ("ped-anova", "fanova")


def importance(
    space: Space, results: Iterable[tuple[Mapping[str, ParamValue], float]], *, goal: Goal = Goal.MIN, method: str = "ped-anova"
) -> Mapping[str, float]:
    """The share of each parameter, the largest first; together 1, or all 0 where every trial came out the same.

    results: params and the metric's value. ped-anova: what makes the best tenth of the trials good (Watanabe et al., IJCAI 2023); fanova:
    what the variance over all of them comes from (Hutter et al., ICML 2014; needs scikit-learn). A parameter that does not
    exist in a trial counts as a value of its own there. Raises SpecError for fewer than `FEWEST` results.
    """
    if method not in METHODS:
        raise SpecError(f"importance: there is no method `{method}`", hints=(f"methods: {', '.join(METHODS)}",))
    known = [(params, value) for params, value in results if isfinite(value)]
    if len(known) < FEWEST:
        raise SpecError(f"importance: {len(known)} results are too few", hints=(f"at least {FEWEST} trials have to have reported the metric",))
    searched = {name: _with_absent(space, axis) for name, axis in axes(space).items()}
    if len({value for _, value in known}) == 1 or not searched:
        return dict.fromkeys(searched, 0.0)
    optuna = load_optuna("importance", *(("sklearn",) if method == "fanova" else ()))
    distributions = {name: axis.distribution(optuna) for name, (axis, _) in searched.items()}
    evaluators = optuna.importance
    with quiet(optuna):
        study = optuna.create_study(direction="maximize" if goal is Goal.MAX else "minimize")
        for params, value in known:
            places = {name: axis.place(params[name]) if name in params else absent for name, (axis, absent) in searched.items()}
            study.add_trial(optuna.trial.create_trial(params=places, distributions=distributions, value=value))
        evaluator = evaluators.FanovaImportanceEvaluator(seed=0) if method == "fanova" else evaluators.PedAnovaImportanceEvaluator()
        found = evaluators.get_param_importances(study, evaluator=evaluator, params=list(searched))
    shares = {name: float(share) if isfinite(share) else 0.0 for name, share in found.items()}
    return dict(sorted(shares.items(), key=lambda entry: (-entry[1], entry[0])))


def _with_absent(space: Space, axis: Axis) -> tuple[Axis, float]:
    """The axis with room for trials in which the parameter does not exist, a quarter of its width below the lowest value, and their place."""
    if not any(parameter.conditions for parameter in space.parameters if parameter.name == axis.name):
        return axis, axis.low
    if axis.kind == "categorical":
        return replace(axis, high=axis.high + 1), int(axis.high) + 1
    if axis.log:
        absent = axis.low / (axis.high / axis.low) ** 0.25
        return replace(axis, kind="float", low=absent), absent
    absent = axis.low - (axis.high - axis.low) / 4
    return (replace(axis, low=absent), absent) if axis.kind == "float" else (replace(axis, low=-1 - int(axis.high) // 4), -1 - int(axis.high) // 4)
