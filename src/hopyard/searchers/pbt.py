"""Population based training (Jaderberg et al., 2017): truncation selection, perturbation, no barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Parameter, Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, TrialOutcome, Verdict
from hopyard.searchers.base import TrackedTrial, TrackingSearcher
from hopyard.searchers.sampling import nearest_value, quantise, sample_parameter, uniform


@dataclass(frozen=True, slots=True)
class _MemberSnapshot:
    """A member as it was at one of its budgets: what others would copy."""

    loss: float
    params: Mapping[str, ParamValue]


class PopulationBased(TrackingSearcher):
    """`trials` members train side by side, `interval` epochs at a time. A member that is among the worst
    `quantile` when it goes on takes over state and params of one of the best `quantile`, drawn from them, and
    explores: each parameter is drawn anew with probability `resample`, else changed a little. Compared are
    members after the same number of epochs, as they were then.

    The member that has done least goes on first, so that few workers keep a large population level. rounds:
    all wait until the last has reached the same epoch. A member that fails is gone. Who descends from whom is
    in `Proposal.start_from`.
    """

    def __init__(
        self,
        *,
        space: Space,
        goal: Goal,
        trials: int | None,
        max_epochs: int,
        seed: int,
        interval: int = 1,
        quantile: float = 0.25,
        resample: float = 0.25,
        factor: float = 1.2,
        rounds: bool = False,
    ) -> None:
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed)
        self._interval, self._quantile, self._resample, self._factor, self._rounds = (
            interval,
            quantile,
            resample,
            factor,
            rounds,
        )
        self._snapshots: dict[
            int, dict[int, _MemberSnapshot]
        ] = {}  # of members that can be copied, by their epochs

    def _next(self) -> Proposal | SearchState:
        if self._max_trials is None or len(self._trials) < self._max_trials:
            return self._new_trial(min(self._interval, self._max_epochs))
        alive = [member for member in self._trials if member.verdict in (None, Verdict.PAUSE)]
        ready = [member for member in alive if member.is_paused]
        if not ready:
            return SearchState.WAIT if alive else SearchState.DONE
        least = min(ready, key=lambda member: (member.step, member.number))
        if not self._rounds:
            return self._continue_member(least, self._find_donor(least))
        if any(
            member.step < least.step or (not member.is_paused and member.budget == least.step)
            for member in alive
        ):
            return SearchState.WAIT
        # Who copies goes first: a member that went on already may have left the state that is to be copied.
        level = [member for member in ready if member.step == least.step]
        donors = {member.number: self._find_donor(member) for member in level}
        level.sort(key=lambda member: (donors[member.number] is None, member.number))
        return self._continue_member(level[0], donors[level[0].number])

    def _on_budget_reached(self, trial: TrackedTrial) -> Verdict:
        assert trial.loss is not None
        self._snapshots.setdefault(trial.number, {})[trial.budget] = _MemberSnapshot(trial.loss, trial.params)
        return Verdict.CONTINUE if trial.budget >= self._max_epochs else Verdict.PAUSE

    def _on_trial_ended(self, trial: TrackedTrial, _outcome: TrialOutcome) -> None:
        self._snapshots.pop(trial.number, None)

    def _continue_member(self, member: TrackedTrial, donor: TrackedTrial | None) -> Proposal:
        if donor is not None:
            member.params = explore(
                self._space,
                self._snapshots[donor.number][member.step].params,
                self._seed,
                member.number,
                member.step,
                resample=self._resample,
                factor=self._factor,
            )
        return self._resume_trial(
            member, min(member.budget + self._interval, self._max_epochs), start_from=donor
        )

    def _find_donor(self, member: TrackedTrial) -> TrackedTrial | None:
        """Whom it copies; None where it is good enough."""
        losses = {
            number: stands[member.step].loss
            for number, stands in self._snapshots.items()
            if member.step in stands
        }
        ranking = sorted(losses, key=lambda number: (losses[number], number))
        few = int(len(ranking) * self._quantile)
        if not few or member.number not in ranking[-few:]:
            return None
        share = uniform(self._seed, member.number, "", purpose=f"exploit-{member.step}")
        return self._trials[ranking[int(share * few)]]


def explore(
    space: Space,
    params: Mapping[str, ParamValue],
    seed: int,
    trial: int,
    step: int,
    *,
    resample: float,
    factor: float,
) -> dict[str, ParamValue]:
    """These params, changed: each drawn anew with probability `resample` (also where it does not exist in
    `params`), else moved."""
    chosen: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        if not space.is_active(parameter, chosen):
            continue
        name = parameter.name
        if name not in params or uniform(seed, trial, name, purpose=f"resample-{step}") < resample:
            chosen[name] = sample_parameter(parameter, seed, trial, purpose=f"explore-{step}")
        else:
            up = uniform(seed, trial, name, purpose=f"direction-{step}") < 0.5
            chosen[name] = perturb(parameter, params[name], factor=factor, up=up)
    return chosen


def perturb(parameter: Parameter, value: ParamValue, *, factor: float, up: bool) -> ParamValue:
    """A number times or by `factor`, at least one step, within its range; of a choice the value before or
    after. A range that reaches 0 has no scale to multiply on: there a number moves by the share `factor - 1`
    of the range."""
    domain = parameter.domain
    if isinstance(domain, Constant):
        return domain.value
    if isinstance(domain, Choice):
        at = next(
            (at for at, known in enumerate(domain.values) if known == value and type(known) is type(value)), 0
        )
        return domain.values[max(0, min(len(domain.values) - 1, at + (1 if up else -1)))]
    assert isinstance(value, int | float)
    if domain.low > 0:
        target = value * factor if up else value / factor
    else:
        target = value + (1 if up else -1) * (factor - 1) * (domain.high - domain.low)
    if domain.step is None:
        return nearest_value(domain, target)
    before, after = (round((number - domain.low) / domain.step) for number in (value, target))
    return quantise(domain, after if after != before else before + (1 if up else -1))
