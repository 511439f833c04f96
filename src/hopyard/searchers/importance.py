"""Parameter importance: how much each parameter affects the metric, computed by Optuna from the trials of a
study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.errors import SpecError
from hopyard.searchers.optuna_model import load_optuna, silence_logging
from hopyard.searchers.optuna_space import axes
from hopyard.searchers.sampling import sample_parameter

MIN_TRIALS = 4  # trials, below which nothing can be told
METHODS = ("ped-anova", "fanova")


def importance(
    space: Space,
    results: Iterable[tuple[Mapping[str, ParamValue], float]],
    *,
    goal: Goal = Goal.MIN,
    method: str = "ped-anova",
) -> Mapping[str, float]:
    """The share of each parameter, the largest first; together 1, or all 0 where every trial came out the
    same.

    results: params and the metric's value. ped-anova: what makes the best tenth of the trials good (Watanabe
    et al., IJCAI 2023); fanova: what the variance over all of them comes from (Hutter et al., ICML 2014;
    needs scikit-learn). Where a parameter does not exist, it is taken to have some value that changes nothing
    (one that is drawn), so that what its absence does counts for those that it depends on. Raises SpecError
    for fewer than `MIN_TRIALS` results.
    """
    if method not in METHODS:
        raise SpecError(
            f"importance: there is no method `{method}`", hints=(f"methods: {', '.join(METHODS)}",)
        )
    known = [(params, value) for params, value in results if isfinite(value)]
    if len(known) < MIN_TRIALS:
        raise SpecError(
            f"importance: {len(known)} results are too few",
            hints=(f"at least {MIN_TRIALS} trials have to have reported the metric",),
        )
    searched = axes(space)
    if len({value for _, value in known}) == 1 or not searched:
        return dict.fromkeys(searched, 0.0)
    optuna = load_optuna("importance", *(("sklearn",) if method == "fanova" else ()))
    distributions = {name: axis.distribution(optuna) for name, axis in searched.items()}
    evaluators = optuna.importance
    with silence_logging(optuna):
        study = optuna.create_study(direction="maximize" if goal is Goal.MAX else "minimize")
        for number, (params, value) in enumerate(known):
            drawn = {
                each.name: sample_parameter(each, 0, number)
                for each in space.parameters
                if each.name in searched and each.name not in params
            }
            places = {name: axis.position_of({**params, **drawn}[name]) for name, axis in searched.items()}
            study.add_trial(
                optuna.trial.create_trial(params=places, distributions=distributions, value=value)
            )
        evaluator = (
            evaluators.FanovaImportanceEvaluator(seed=0)
            if method == "fanova"
            else evaluators.PedAnovaImportanceEvaluator()
        )
        found = evaluators.get_param_importances(study, evaluator=evaluator, params=list(searched))
    shares = {name: float(share) if isfinite(share) else 0.0 for name, share in found.items()}
    return dict(sorted(shares.items(), key=lambda entry: (-entry[1], entry[0])))
