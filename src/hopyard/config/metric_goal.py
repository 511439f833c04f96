"""Infers whether a metric is to be maximised or minimised."""

from __future__ import annotations

import re
from itertools import pairwise

from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.study import Goal
from hopyard.errors import SpecError

_MAXIMISED_METRICS = frozenset(
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
_MINIMISED_METRICS = frozenset(
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
_NEGATION_WORDS = frozenset({"neg", "negative", "inverse", "minus"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_GOAL_WORDS = {
    "max": Goal.MAX,
    "maximize": Goal.MAX,
    "maximise": Goal.MAX,
    "min": Goal.MIN,
    "minimize": Goal.MIN,
    "minimise": Goal.MIN,
}


def read_goal(top: YamlSection) -> Goal:
    """Returns the goal: `goal: max`, or `mode: max` as in Ray Tune; else the goal that the metric's name
    implies. Raises SpecError where it implies none."""
    if top.contains("goal") and top.contains("mode"):
        raise top.error("mode", "`goal` has the same meaning", "keep only one of the two")
    key = "mode" if top.contains("mode") else "goal"
    text = top.text(key)
    if text:
        if text not in _GOAL_WORDS:
            raise top.error(
                key, f"{format_given(text)} is neither max nor min", *unknown_name_hints(text, ("max", "min"))
            )
        return _GOAL_WORDS[text]
    metric = top.text("metric")
    inferred = infer_goal(metric)
    if inferred is None:
        raise SpecError(
            f"{top.file}: goal: missing, and `{metric}` does not imply a direction",
            hints=("write `goal: max` or `goal: min`",),
        )
    return inferred


def infer_goal(metric: str) -> Goal | None:
    """Returns the goal that a metric's name implies: MAX of `val_acc`, MIN of `eval/loss`, None where it is
    unclear."""
    words = [word.lower() for word in _WORD.findall(metric)]
    words += [a + b for a, b in pairwise(words)]  # f1 and top5 fall apart
    if not _NEGATION_WORDS.isdisjoint(words):
        return None
    large, small = (
        any(word in _MAXIMISED_METRICS for word in words),
        any(word in _MINIMISED_METRICS for word in words),
    )
    return None if large == small else Goal.MAX if large else Goal.MIN
