"""How results are ordered: which direction of a metric is better."""

from __future__ import annotations

import math
import re

_LOWER = re.compile(r"(^|[_./-])(loss|err|error|perplexity|ppl|wer|cer|mse|rmse|mae|nll|fid|bpc|bpb|latency|time|regret|divergence|kl)($|[_./@-]|\d)", re.I)


def higher_is_better(metric: str) -> bool:
    """The direction that a metric's name tells: losses, errors and times down, everything else up."""
    return _LOWER.search(metric) is None


def sort_key(value: float, *, higher: bool) -> tuple[bool, float]:
    """Best first under `sorted`; a value that is not a number goes last."""
    if math.isnan(value):
        return (True, 0.0)
    return (False, -value if higher else value)
