"""Grid search: every combination once. A parameter that does not exist adds no combinations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Choice, Constant, Integer, Parameter, Space, Uniform
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, Verdict
from hopyard.errors import SpecError
from hopyard.searchers.base import TrackedTrial, TrackingSearcher
from hopyard.searchers.sampling import interpolate_log, last_step, nearest_value, quantise, uniform

MAX_COMBINATIONS = 100_000  # far above the size of a real study, and small enough to keep in memory


class Grid(TrackingSearcher):
    """points: the number of values of a range that sets none itself. The last parameter changes fastest.
    shuffle: in an order drawn from the seed. trials: only this number of the first combinations. Raises
    SpecError if a range has no number of points, or if there are more than `MAX_COMBINATIONS`
    combinations."""

    def __init__(
        self,
        *,
        space: Space,
        goal: Goal,
        trials: int | None,
        max_epochs: int,
        seed: int,
        points: int | None = None,
        shuffle: bool = False,
    ) -> None:
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed)
        self._points = tuple(combinations(space, points))
        if shuffle:
            order = sorted(
                range(len(self._points)),
                key=lambda number: (uniform(seed, number, "", purpose="shuffle"), number),
            )
            self._points = tuple(self._points[number] for number in order)

    def _next(self) -> Proposal | SearchState:
        limit = len(self._points) if self._max_trials is None else min(self._max_trials, len(self._points))
        return self._new_trial(self._max_epochs) if len(self._trials) < limit else SearchState.DONE

    def _params(self, number: int) -> Mapping[str, ParamValue]:
        return self._points[number]

    def _on_budget_reached(self, _trial: TrackedTrial) -> Verdict:
        return Verdict.CONTINUE


def combinations(space: Space, points: int | None = None) -> list[dict[str, ParamValue]]:
    """Returns every combination of the points of the parameters that exist together, each once. Raises
    SpecError as `Grid` does."""
    axes = {parameter.name: grid_values(parameter, points) for parameter in space.parameters}
    result = list(islice(_combine(space, axes, 0, {}), MAX_COMBINATIONS + 1))
    if len(result) > MAX_COMBINATIONS:
        widest = max(axes, key=lambda name: len(axes[name]))
        count = (
            f"{len(axes[widest]):,}"
            if len(axes[widest]) <= MAX_COMBINATIONS
            else f"more than {MAX_COMBINATIONS:,}"
        )
        raise SpecError(
            f"space: a grid of more than {MAX_COMBINATIONS:,} combinations",
            hints=(
                f"give `{widest}` fewer points (it has {count} values): `points: 3` in its range",
                "or use another searcher: `random`, `tpe`",
            ),
        )
    return result


def _combine(
    space: Space, axes: Mapping[str, list[ParamValue]], depth: int, params: dict[str, ParamValue]
) -> Iterator[dict[str, ParamValue]]:
    if depth == len(space.parameters):
        yield dict(params)
        return
    parameter = space.parameters[depth]
    if not space.is_active(parameter, params):
        yield from _combine(space, axes, depth + 1, params)
        return
    for value in axes[parameter.name]:
        yield from _combine(space, axes, depth + 1, {**params, parameter.name: value})


def grid_values(parameter: Parameter, points: int | None) -> list[ParamValue]:
    """Returns the values of one parameter in a grid, in order, each once."""
    match parameter.domain:
        case Constant(value):
            return [value]
        case Choice(values):
            return list({(type(value), value): value for value in values}.values())
        case Integer() | Uniform() as domain:
            count = points if domain.points is None else domain.points
            if domain.points is None and domain.step is not None and not domain.log:
                count = min(MAX_COMBINATIONS, last_step(domain)) + 1
    if count is None:
        raise SpecError(
            f"space.{parameter.name}: a grid needs a number of points for this range",
            hints=("set `points: 5` here, or in the options of the searcher for all ranges",),
        )
    return list(
        dict.fromkeys(
            _evenly_spaced(domain, number / (count - 1) if count > 1 else 0.5) for number in range(count)
        )
    )


def _evenly_spaced(domain: Uniform | Integer, share: float) -> ParamValue:
    """Returns the value at `share` of the way from the lowest to the highest, both included."""
    if domain.log:
        return nearest_value(domain, interpolate_log(domain.low, domain.high, share))
    if domain.step is not None:
        return quantise(domain, round(share * last_step(domain)))
    return nearest_value(domain, domain.low + share * (domain.high - domain.low))
