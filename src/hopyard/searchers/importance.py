"""Parameter importance: how much each parameter decides whether a trial of a study is among the best.

PED-ANOVA (Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently quantifying hyperparameter importance in
arbitrary subspaces", IJCAI 2023): the distribution of a parameter's values in the best tenth of the trials is
compared with its distribution in all of them. The effort is linear in the number of trials, and no model is
trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp, isfinite, log, pow, sqrt
from statistics import fmean

from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.errors import SpecError
from hopyard.searchers.optuna_space import Axis, axes
from hopyard.searchers.sampling import sample_parameter

MIN_TRIALS = 4  # with fewer results, no importance is computed
_TOP_SHARE = 0.1  # of the trials that count as the best
_MIN_TOP_TRIALS = 2
_MAX_CELLS = 32  # of the grid of a parameter
_PRIOR_WEIGHT = 1.0  # of an even distribution, in trials: few trials prove little
_MIN_WIDTH = 0.05  # of a kernel, as a share of the range


def importance(
    space: Space, results: Iterable[tuple[Mapping[str, ParamValue], float]], *, goal: Goal = Goal.MIN
) -> Mapping[str, float]:
    """Returns the share of each parameter, the largest first. The shares sum to 1; all are 0 if every trial
    has the same result.

    results: params and the value of the metric. A parameter that does not exist in a trial gets a drawn
    value, which changes nothing. So the effect of its absence counts for the parameters that it depends on.
    Raises SpecError for fewer than `MIN_TRIALS` results.
    """
    finite_results = [(params, value) for params, value in results if isfinite(value)]
    if len(finite_results) < MIN_TRIALS:
        raise SpecError(
            f"importance: {len(finite_results)} results are too few",
            hints=(f"at least {MIN_TRIALS} trials have to have reported the metric",),
        )
    searched = axes(space)
    if len({value for _, value in finite_results}) == 1 or not searched:
        return dict.fromkeys(searched, 0.0)
    parameters = {parameter.name: parameter for parameter in space.parameters}
    best = _best_trials([value for _, value in finite_results], goal)
    divergences = {}
    for name, axis in searched.items():
        positions = [
            axis.position_of(
                params[name] if name in params else sample_parameter(parameters[name], 0, number)
            )
            for number, (params, _) in enumerate(finite_results)
        ]
        divergences[name] = _divergence(axis, positions, best)
    total = sum(divergences.values())
    shares = {name: each / total if total > 0 else 0.0 for name, each in divergences.items()}
    return dict(sorted(shares.items(), key=lambda entry: (-entry[1], entry[0])))


def _best_trials(values: Sequence[float], goal: Goal) -> list[int]:
    """Returns the places of the best tenth, and of all trials that are as good as its last one."""
    losses = [-value if goal is Goal.MAX else value for value in values]
    limit = sorted(losses)[max(_MIN_TOP_TRIALS, ceil(_TOP_SHARE * len(losses))) - 1]
    return [place for place, loss in enumerate(losses) if loss <= limit]


def _divergence(axis: Axis, positions: Sequence[float], best: Sequence[int]) -> float:
    """Returns the Pearson divergence of the values of the best trials from those of all trials."""
    cells = _MAX_CELLS
    is_ordered = axis.kind != "categorical"
    if (axis.kind != "float" and axis.high - axis.low < _MAX_CELLS) or not is_ordered:
        cells = int(axis.high - axis.low) + 1
    scaled = [_scaled(axis, position) for position in positions]
    places = [min(cells - 1, int(each * cells)) for each in scaled]
    # one width for both: otherwise the narrower kernels of the larger set would count as a difference
    width = _kernel_width([scaled[place] for place in best]) if is_ordered else 0.0
    everything = _density(places, cells, width)
    top = _density([places[place] for place in best], cells, width)
    return sum(all_ * (best_ / all_ - 1.0) ** 2 for best_, all_ in zip(top, everything, strict=True))


def _scaled(axis: Axis, position: float) -> float:
    """Returns a position as a share of the range, in the logarithm if the axis has one. Whole numbers get
    intervals of equal width, and the share is in the middle of theirs."""
    if axis.kind == "float":
        return position
    if axis.log:
        low, high = log(axis.low), log(axis.high + 1)
        return (log(position + 0.5) - low) / (high - low)
    return (position - axis.low + 0.5) / (axis.high - axis.low + 1)


def _kernel_width(shares: Sequence[float]) -> float:
    """Returns the width of a kernel by Scott's rule, as a share of the range."""
    mean = fmean(shares)
    deviation = sqrt(fmean([(each - mean) ** 2 for each in shares]))
    return max(_MIN_WIDTH, 1.06 * deviation / pow(len(shares), 0.2))


def _density(places: Sequence[int], cells: int, width: float) -> list[float]:
    """Returns the share of each cell: kernels of the given width around the places, and the prior."""
    counts = [0] * cells
    for place in places:
        counts[place] += 1
    density = [_PRIOR_WEIGHT / cells] * cells
    for place, count in enumerate(counts):
        if count:
            kernel = [_kernel(cell - place, cells, width) for cell in range(cells)]
            scale = count / sum(kernel)
            density = [each + scale * part for each, part in zip(density, kernel, strict=True)]
    total = sum(density)
    return [each / total for each in density]


def _kernel(distance: int, cells: int, width: float) -> float:
    """Returns the height of a normal kernel at a distance in cells; width 0 keeps all in one cell."""
    if width == 0.0:
        return float(distance == 0)
    return exp(-0.5 * (distance / (cells * width)) ** 2)
