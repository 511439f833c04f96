"""How results are ordered: which direction of a metric is better."""

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
    """The direction that a metric's name tells: losses, errors and times down, everything else up.

    `valLoss` reads as `val_loss`; a negated one turns round (scikit-learn's `neg_mean_squared_error` goes
    up).
    """
    words = _CAMEL_CASE_BOUNDARY.sub("_", metric)
    return (_LOWER_IS_BETTER_NAMES.search(words) is None) != (_NEGATED_NAMES.search(words) is not None)


def sort_key(value: float, *, higher: bool) -> tuple[bool, float]:
    """Best first under `sorted`; a value that is not a number goes last."""
    if math.isnan(value):
        return (True, 0.0)
    return (False, -value if higher else value)
