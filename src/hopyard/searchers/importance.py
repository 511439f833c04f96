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

MIN_TRIALS = 4  # with fewer results, no importance is computed
METHODS = ("ped-anova", "fanova")


def importance(
    space: Space,
    results: Iterable[tuple[Mapping[str, ParamValue], float]],
    *,
    goal: Goal = Goal.MIN,
    method: str = "ped-anova",
) -> Mapping[str, float]:
    """Returns the share of each parameter, the largest first. The shares sum to 1; all are 0 if every trial
    has the same result.

    results: params and the value of the metric. ped-anova: which parameters make the best tenth of the trials
    good (Watanabe et al., IJCAI 2023). fanova: which parameters cause the variance over all trials (Hutter et
    al., ICML 2014; needs scikit-learn). A parameter that does not exist in a trial gets a drawn value, which
    changes nothing. So the effect of its absence counts for the parameters that it depends on. Raises
    SpecError for fewer than `MIN_TRIALS` results.
    """
    if method not in METHODS:
        raise SpecError(
            f"importance: there is no method `{method}`", hints=(f"methods: {', '.join(METHODS)}",)
        )
    finite_results = [(params, value) for params, value in results if isfinite(value)]
    if len(finite_results) < MIN_TRIALS:
        raise SpecError(
            f"importance: {len(finite_results)} results are too few",
            hints=(f"at least {MIN_TRIALS} trials have to have reported the metric",),
        )
    searched = axes(space)
    if len({value for _, value in finite_results}) == 1 or not searched:
        return dict.fromkeys(searched, 0.0)
    optuna = load_optuna("importance", *(("sklearn",) if method == "fanova" else ()))
    distributions = {name: axis.distribution(optuna) for name, axis in searched.items()}
    evaluators = optuna.importance
    with silence_logging(optuna):
        study = optuna.create_study(direction="maximize" if goal is Goal.MAX else "minimize")
        for number, (params, value) in enumerate(finite_results):
            drawn = {
                parameter.name: sample_parameter(parameter, 0, number)
                for parameter in space.parameters
                if parameter.name in searched and parameter.name not in params
            }
            positions = {name: axis.position_of({**params, **drawn}[name]) for name, axis in searched.items()}
            study.add_trial(
                optuna.trial.create_trial(params=positions, distributions=distributions, value=value)
            )
        evaluator = (
            evaluators.FanovaImportanceEvaluator(seed=0)
            if method == "fanova"
            else evaluators.PedAnovaImportanceEvaluator()
        )
        importances = evaluators.get_param_importances(study, evaluator=evaluator, params=list(searched))
    shares = {name: float(share) if isfinite(share) else 0.0 for name, share in importances.items()}
    return dict(sorted(shares.items(), key=lambda entry: (-entry[1], entry[0])))
