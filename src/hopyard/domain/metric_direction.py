"""The order of results: which direction of a metric is better."""

from __future__ import annotations

import math
import re

_LOWER_IS_BETTER_NAMES = re.compile(
    r"(^|[_./-])(loss|err|error|perplexity|ppl|wer|cer|mse|rmse|mae|nll|fid|bpc|bpb|latency|time|regret|divergence|kl)(\Z|[_./@-]|\d)",
    re.I,
)

_NEGATED_NAMES = re.compile(r"(^|[_./-])neg(ative)?_", re.I)
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def higher_is_better(metric: str) -> bool:
    """Derives the direction from the metric's name: losses, errors and times down, all others up.

    `valLoss` reads as `val_loss`; a negated name reverses the direction (scikit-learn's
    `neg_mean_squared_error` goes up).
    """
    words = _CAMEL_CASE_BOUNDARY.sub("_", metric)
    return (_LOWER_IS_BETTER_NAMES.search(words) is None) != (_NEGATED_NAMES.search(words) is not None)


def sort_key(value: float, *, higher: bool) -> tuple[bool, float]:
    """Sorts the best value first under `sorted`, and NaN last."""
    if math.isnan(value):
        return (True, 0.0)
    return (False, -value if higher else value)
