"""Population based training (Jaderberg et al., 2017): truncation selection, perturbation, no barrier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Parameter, Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, TrialOutcome, Verdict
from hopyard.searchers.draw import draw_one, onto, quantised, unit
from hopyard.searchers.tracked import Tracked, TrackingSearcher


@dataclass(frozen=True, slots=True)
class _Stand:
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
        self._stands: dict[int, dict[int, _Stand]] = {}  # of members that can be copied, by their epochs

    def _next(self) -> Proposal | SearchState:
        if self._limit is None or len(self._trials) < self._limit:
            return self._fresh(min(self._interval, self._max_epochs))
        alive = [member for member in self._trials if member.verdict in (None, Verdict.PAUSE)]
        ready = [member for member in alive if member.paused]
        if not ready:
            return SearchState.WAIT if alive else SearchState.DONE
        least = min(ready, key=lambda member: (member.step, member.number))
        if not self._rounds:
            return self._go_on(least, self._donor(least))
        if any(
            member.step < least.step or (not member.paused and member.budget == least.step)
            for member in alive
        ):
            return SearchState.WAIT
        # Who copies goes first: a member that went on already may have left the state that is to be copied.
        level = [member for member in ready if member.step == least.step]
        donors = {member.number: self._donor(member) for member in level}
        level.sort(key=lambda member: (donors[member.number] is None, member.number))
        return self._go_on(level[0], donors[level[0].number])

    def _reached(self, trial: Tracked) -> Verdict:
        assert trial.loss is not None
        self._stands.setdefault(trial.number, {})[trial.budget] = _Stand(trial.loss, trial.params)
        return Verdict.CONTINUE if trial.budget >= self._max_epochs else Verdict.PAUSE

    def _ended(self, trial: Tracked, _outcome: TrialOutcome) -> None:
        self._stands.pop(trial.number, None)

    def _go_on(self, member: Tracked, donor: Tracked | None) -> Proposal:
        if donor is not None:
            member.params = explored(
                self._space,
                self._stands[donor.number][member.step].params,
                self._seed,
                member.number,
                member.step,
                resample=self._resample,
                factor=self._factor,
            )
        return self._again(member, min(member.budget + self._interval, self._max_epochs), start_from=donor)

    def _donor(self, member: Tracked) -> Tracked | None:
        """Whom it copies; None where it is good enough."""
        losses = {
            number: stands[member.step].loss
            for number, stands in self._stands.items()
            if member.step in stands
        }
        ranking = sorted(losses, key=lambda number: (losses[number], number))
        few = int(len(ranking) * self._quantile)
        if not few or member.number not in ranking[-few:]:
            return None
        share = unit(self._seed, member.number, "", purpose=f"exploit-{member.step}")
        return self._trials[ranking[int(share * few)]]


def explored(
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
        if not space.active(parameter, chosen):
            continue
        name = parameter.name
        if name not in params or unit(seed, trial, name, purpose=f"resample-{step}") < resample:
            chosen[name] = draw_one(parameter, seed, trial, purpose=f"explore-{step}")
        else:
            up = unit(seed, trial, name, purpose=f"direction-{step}") < 0.5
            chosen[name] = moved(parameter, params[name], factor=factor, up=up)
    return chosen


def moved(parameter: Parameter, value: ParamValue, *, factor: float, up: bool) -> ParamValue:
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
        return onto(domain, target)
    before, after = (round((number - domain.low) / domain.step) for number in (value, target))
    return quantised(domain, after if after != before else before + (1 if up else -1))
