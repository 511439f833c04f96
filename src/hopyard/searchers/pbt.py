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
    """A member at one of its budgets, as other members would copy it."""

    loss: float
    params: Mapping[str, ParamValue]


class PopulationBased(TrackingSearcher):
    """`trials` members train side by side, `interval` epochs at a time. If a member is among the worst
    `quantile` when it resumes, it copies the state and params of a member drawn from the best `quantile`. It
    then explores: each parameter is drawn again with probability `resample`, otherwise changed a little.
    Members are compared after the same number of epochs, as they were then.

    The member with the fewest epochs resumes first, so that few workers keep a large population level.
    rounds: all members wait until the last has reached the same epoch. A member that fails is removed.
    `Proposal.start_from` records the ancestry.
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
        next_member = min(ready, key=lambda member: (member.step, member.number))
        if not self._rounds:
            return self._continue_member(next_member, self._find_donor(next_member))
        if any(
            member.step < next_member.step or (not member.is_paused and member.budget == next_member.step)
            for member in alive
        ):
            return SearchState.WAIT
        # Members that copy resume first: a member that already resumed may have replaced the state to copy.
        level = [member for member in ready if member.step == next_member.step]
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
        """Returns the member to copy; None if this member is good enough."""
        losses = {
            number: snapshots[member.step].loss
            for number, snapshots in self._snapshots.items()
            if member.step in snapshots
        }
        ranking = sorted(losses, key=lambda number: (losses[number], number))
        count = int(len(ranking) * self._quantile)
        if not count or member.number not in ranking[-count:]:
            return None
        share = uniform(self._seed, member.number, "", purpose=f"exploit-{member.step}")
        return self._trials[ranking[int(share * count)]]


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
    """Returns changed params. Each parameter is drawn again with probability `resample`, or if it does not
    exist in `params`; otherwise it is perturbed."""
    new_params: dict[str, ParamValue] = {}
    for parameter in space.parameters:
        if not space.is_active(parameter, new_params):
            continue
        name = parameter.name
        if name not in params or uniform(seed, trial, name, purpose=f"resample-{step}") < resample:
            new_params[name] = sample_parameter(parameter, seed, trial, purpose=f"explore-{step}")
        else:
            up = uniform(seed, trial, name, purpose=f"direction-{step}") < 0.5
            new_params[name] = perturb(parameter, params[name], factor=factor, up=up)
    return new_params


def perturb(parameter: Parameter, value: ParamValue, *, factor: float, up: bool) -> ParamValue:
    """Multiplies or divides a number by `factor`, by at least one step, within its range. A choice moves to
    the value before or after. A range that reaches 0 has no scale to multiply on; there a number moves by the
    share `factor - 1` of the range."""
    domain = parameter.domain
    if isinstance(domain, Constant):
        return domain.value
    if isinstance(domain, Choice):
        index = next(
            (
                index
                for index, candidate in enumerate(domain.values)
                if candidate == value and type(candidate) is type(value)
            ),
            0,
        )
        return domain.values[max(0, min(len(domain.values) - 1, index + (1 if up else -1)))]
    assert isinstance(value, int | float)
    if domain.low > 0:
        target = value * factor if up else value / factor
    else:
        target = value + (1 if up else -1) * (factor - 1) * (domain.high - domain.low)
    if domain.step is None:
        return nearest_value(domain, target)
    old_step, new_step = (round((number - domain.low) / domain.step) for number in (value, target))
    return quantise(domain, new_step if new_step != old_step else old_step + (1 if up else -1))
