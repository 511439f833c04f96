"""Searchers that learn from the results of trials, with Optuna's samplers: TPE, Gaussian processes, CMA-ES.

Each trains every trial to `max_epochs`. `searcher: {name: median, of: tpe}` stops hopeless trials early;
`bohb` is TPE with Hyperband's budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, TrialOutcome, Verdict
from hopyard.errors import SpecError
from hopyard.searchers.base import TrackedTrial, TrackingSearcher
from hopyard.searchers.optuna_model import OptunaModel, load_optuna, single_thread
from hopyard.searchers.optuna_space import axes, is_conditional


class ModelSearcher(TrackingSearcher):
    """`trials` trials that a model proposes; fewer where the space has no more configurations."""

    def __init__(
        self, *, space: Space, goal: Goal, trials: int | None, max_epochs: int, seed: int, model: OptunaModel
    ) -> None:
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed)
        self._model = model
        self._proposed: Mapping[str, ParamValue] | None = {}

    def recall(self, proposals: Mapping[TrialId, Mapping[str, ParamValue]]) -> None:
        self._model.recall({int(trial): params for trial, params in proposals.items()})

    def _next(self) -> Proposal | SearchState:
        if self._proposed is None or (self._max_trials is not None and len(self._trials) >= self._max_trials):
            return SearchState.DONE
        number = len(self._trials)
        point = self._point(number)
        self._proposed = (
            self._model.propose(number) if point is None else self._model.add_running(number, dict(point))
        )
        return SearchState.DONE if self._proposed is None else self._new_trial(self._max_epochs)

    def _params(self, _number: int) -> Mapping[str, ParamValue]:
        assert self._proposed is not None
        return self._proposed

    def _on_budget_reached(self, trial: TrackedTrial) -> Verdict:
        self._model.finish(trial.number, trial.loss)
        return Verdict.CONTINUE

    def _on_trial_ended(self, trial: TrackedTrial, outcome: TrialOutcome) -> None:
        stopped = outcome is TrialOutcome.STOPPED and trial.loss is not None
        loss = trial.loss if stopped or outcome is TrialOutcome.COMPLETED else None
        self._model.finish(trial.number, loss, stopped_at=trial.step if stopped else None)


class Tpe(ModelSearcher):
    """Tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), multivariate (Falkner et al., ICML
    2018, section 3.1), with one joint density for each group of parameters that exist together. Trials that
    still train count as bad ones (constant liar), so that concurrent trials differ."""

    def __init__(
        self, *, space: Space, goal: Goal, trials: int | None, max_epochs: int, seed: int, startup: int = 10
    ) -> None:
        model = tpe_model(load_optuna("tpe"), space, seed, startup)
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed, model=model)


class GaussianProcess(ModelSearcher):
    """A Gaussian process over all parameters at once, and the expected improvement under it (Optuna's
    GPSampler; Hutter et al., "Automated Machine Learning", 2019, section 1.3.2)."""

    def __init__(
        self, *, space: Space, goal: Goal, trials: int | None, max_epochs: int, seed: int, startup: int = 10
    ) -> None:
        def make(optuna: Any, sampler_seed: int) -> Any:
            return optuna.samplers.GPSampler(seed=sampler_seed, n_startup_trials=startup)

        optuna = load_optuna("gp", "scipy", "torch")
        model = OptunaModel(
            optuna=optuna,
            space=space,
            seed=seed,
            startup=startup,
            make=make,
            joint=True,
            within=single_thread,
            slow_start=True,
            recalls=True,
        )
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed, model=model)


class CmaEs(ModelSearcher):
    """Covariance matrix adaptation (Hansen, "The CMA evolution strategy: a tutorial", 2016), with margin if
    there are integers (Hamano et al., GECCO 2022). Parameters that are not numbers are drawn at random.
    Raises SpecError if no parameter is a number."""

    def __init__(
        self,
        *,
        space: Space,
        goal: Goal,
        trials: int | None,
        max_epochs: int,
        seed: int,
        startup: int = 1,
        population: int | None = None,
    ) -> None:
        optuna = load_optuna("cmaes", "cmaes")
        kinds = {axis.kind for axis in axes(space).values()}
        if kinds <= {"categorical"}:
            raise SpecError(
                "searcher.name: `cmaes` searches numbers, and no parameter of the space is one",
                hints=("take `tpe`",),
            )

        def make(optuna: Any, sampler_seed: int) -> Any:
            return optuna.samplers.CmaEsSampler(
                seed=sampler_seed,
                n_startup_trials=startup,
                popsize=population,
                with_margin="int" in kinds,
                warn_independent_sampling=False,
            )

        model = OptunaModel(optuna=optuna, space=space, seed=seed, startup=startup, make=make, joint=True)
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed, model=model)


def tpe_model(optuna: Any, space: Space, seed: int, startup: int) -> OptunaModel:
    def make(optuna: Any, sampler_seed: int) -> Any:
        group = is_conditional(space)
        return optuna.samplers.TPESampler(
            seed=sampler_seed, n_startup_trials=startup, multivariate=True, group=group, constant_liar=True
        )

    return OptunaModel(optuna=optuna, space=space, seed=seed, startup=startup, make=make, recalls=True)
