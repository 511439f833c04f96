"""Round values at the axes of charts."""

from __future__ import annotations

import math


def choose_ticks(low: float, high: float, target_count: int, *, integers_only: bool = False) -> list[float]:
    """Returns round values from `low` to `high`, roughly `target_count` of them, at least two. integers_only:
    only whole numbers if there are any."""
    raw = (high - low) / target_count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    if integers_only:
        step = max(1.0, float(math.ceil(step)))
    first = math.ceil(low / step - 1e-9)
    ticks = [min(max(n * step, low), high) for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return ticks if len(ticks) >= (1 if integers_only else 2) else [low, high]
