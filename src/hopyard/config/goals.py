"""Whether a metric is to be large or small."""

from __future__ import annotations

import re
from itertools import pairwise

from hopyard.config.reader import Section, shown
from hopyard.config.suggest import hints_for
from hopyard.domain.study import Goal
from hopyard.errors import SpecError

_LARGE = frozenset(
    [
        "acc",
        "accuracy",
        "auc",
        "auroc",
        "auprc",
        "ap",
        "map",
        "miou",
        "iou",
        "dice",
        "f1",
        "fbeta",
        "precision",
        "recall",
        "sensitivity",
        "specificity",
        "score",
        "reward",
        "return",
        "bleu",
        "rouge",
        "meteor",
        "r2",
        "top1",
        "top5",
        "psnr",
        "ssim",
        "ndcg",
        "mrr",
        "hits",
        "success",
        "throughput",
        "mcc",
        "kappa",
        "elbo",
    ]
)
_SMALL = frozenset(
    [
        "loss",
        "losses",
        "error",
        "err",
        "perplexity",
        "ppl",
        "mse",
        "rmse",
        "mae",
        "mape",
        "msle",
        "nll",
        "bce",
        "ce",
        "crossentropy",
        "entropy",
        "wer",
        "cer",
        "fid",
        "kl",
        "regret",
        "cost",
        "latency",
        "bpb",
        "bpc",
        "logloss",
        "time",
        "seconds",
        "duration",
    ]
)
# of a loss is large where good, of a likelihood small
_NEGATED = frozenset({"neg", "negative", "inverse", "minus"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WORDS = {
    "max": Goal.MAX,
    "maximize": Goal.MAX,
    "maximise": Goal.MAX,
    "min": Goal.MIN,
    "minimize": Goal.MIN,
    "minimise": Goal.MIN,
}


def read_goal(top: Section) -> Goal:
    """`goal: max`, or `mode: max` as Ray Tune has it; else what the metric's name says.
    Raises SpecError where it says nothing clear."""
    if top.has("goal") and top.has("mode"):
        raise top.fail("mode", "it means the same as `goal`", "keep one of the two")
    key = "mode" if top.has("mode") else "goal"
    text = top.text(key)
    if text:
        if text not in _WORDS:
            raise top.fail(key, f"{shown(text)} is neither max nor min", *hints_for(text, ("max", "min")))
        return _WORDS[text]
    metric = top.text("metric")
    told = goal_of(metric)
    if told is None:
        raise SpecError(
            f"{top.file}: goal: missing, and `{metric}` does not say whether large or small is good",
            hints=("write `goal: max` or `goal: min`",),
        )
    return told


def goal_of(metric: str) -> Goal | None:
    """What the name of a metric says by itself: MAX of `val_acc`, MIN of `eval/loss`, None where it is not
    clear."""
    words = [word.lower() for word in _WORD.findall(metric)]
    words += [a + b for a, b in pairwise(words)]  # f1 and top5 fall apart
    if not _NEGATED.isdisjoint(words):
        return None
    large, small = any(word in _LARGE for word in words), any(word in _SMALL for word in words)
    return None if large == small else Goal.MAX if large else Goal.MIN
