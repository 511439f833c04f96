"""Hyperband's budgets with a model's proposals (Falkner, Klein and Hutter, "BOHB", ICML 2018)."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import TrialOutcome, Verdict
from hopyard.searchers.base import TrackedTrial
from hopyard.searchers.hyperband import Hyperband
from hopyard.searchers.optuna_model import OptunaModel, load_optuna
from hopyard.searchers.optuna_searchers import tpe_model
from hopyard.searchers.optuna_space import axes
from hopyard.searchers.sampling import sample, uniform


class Bohb(Hyperband):
    """Hyperband with a model. Most trials are proposed by TPE, from the results at the largest budget that
    enough trials have reached (section 3.2: three more than the space has parameters). A share of the trials
    is still drawn at random, so that a wrong model costs at most that factor (section 3.1).

    random: that share.
    """

    def __init__(
        self,
        *,
        space: Space,
        goal: Goal,
        trials: int | None,
        max_epochs: int,
        seed: int,
        eta: int = 3,
        min_epochs: int = 1,
        random: float = 1 / 3,
    ) -> None:
        super().__init__(
            space=space,
            goal=goal,
            trials=trials,
            max_epochs=max_epochs,
            seed=seed,
            eta=eta,
            min_epochs=min_epochs,
        )
        self._optuna, self._random = load_optuna("bohb"), random
        self._min_results = len(axes(space)) + 3
        self._models: dict[int, OptunaModel] = {}  # by budget
        self._model_of_trial: dict[int, OptunaModel] = {}  # by trial, until its first result
        self._recalled: Mapping[int, Mapping[str, ParamValue]] = {}

    def recall(self, proposals: Mapping[TrialId, Mapping[str, ParamValue]]) -> None:
        self._recalled = {int(trial): params for trial, params in proposals.items()}
        for model in self._models.values():
            model.recall(self._recalled)

    def _params(self, number: int) -> Mapping[str, ParamValue]:
        model = self._model()
        if model is not None and uniform(self._seed, number, "", purpose="random") >= self._random:
            params = model.propose(number)
            if params is not None:
                self._model_of_trial[number] = model
                return params
        return sample(self._space, self._seed, number)

    def _model(self) -> OptunaModel | None:
        """Returns the model of the largest budget that enough trials have reached."""
        ready = [budget for budget, model in self._models.items() if model.completed >= self._min_results]
        return self._models[max(ready)] if ready else None

    def _on_budget_reached(self, trial: TrackedTrial) -> Verdict:
        assert trial.loss is not None
        self._record_result(trial, trial.loss)
        return super()._on_budget_reached(trial)

    def _on_trial_ended(self, trial: TrackedTrial, outcome: TrialOutcome) -> None:
        if outcome is TrialOutcome.COMPLETED and trial.loss is not None and not trial.is_paused:
            self._record_result(trial, trial.loss)
        elif trial.number in self._model_of_trial:
            self._model_of_trial.pop(trial.number).finish(trial.number, None)
        super()._on_trial_ended(trial, outcome)

    def _record_result(self, trial: TrackedTrial, loss: float) -> None:
        if trial.budget not in self._models:
            self._models[trial.budget] = tpe_model(
                self._optuna, self._space, self._seed + trial.budget, self._min_results
            )
            self._models[trial.budget].recall(self._recalled)
        model = self._models[trial.budget]
        proposer = self._model_of_trial.pop(trial.number, None)
        if proposer is model:
            model.finish(trial.number, loss)
            return
        if proposer is not None:
            proposer.finish(trial.number, None)
        model.add_result(trial.number, trial.params, loss)
