"""Checkpoints in responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime

from msgspec import Struct

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.metric_values import MetricValue, encode_values


class CheckpointOut(Struct, frozen=True, kw_only=True):
    """A checkpoint of a run at `step`.

    metrics: values that are not finite are `"NaN"`, `"Infinity"` and `"-Infinity"`. offsets: the length of
    each of the saving replica's streams at that time; a resume rolls back everything after it. kept: exempt
    from clean-up (best of a leaderboard, or requested). damaged: it cannot be read, and is not used. best_by:
    the metric by which the script chooses the best checkpoint: "max:val_acc" as requested, "val_acc" as
    derived from its results, "" for none. best: it has the best value of the run; set in listings only. path:
    where the script saved it itself, below `run/` or `work/`; "" for a checkpoint of Hopyard. kept_for: why
    the retention keeps it: `last=3`, `best=2`, `every=10`, `kept`, `resumed` (an attempt began with it),
    `all`; set in listings only.
    """

    run: str
    attempt: str
    rank: int
    step: int
    manifest: str
    size_bytes: int
    created_at: datetime
    metrics: Mapping[str, MetricValue]
    offsets: Mapping[str, int]
    kept: bool
    damaged: bool
    best_by: str
    best: bool
    path: str
    kept_for: Sequence[str] = ()


def to_checkpoint_out(checkpoint: Checkpoint, kept_for: Sequence[str] = ()) -> CheckpointOut:
    values = {field.name: getattr(checkpoint, field.name) for field in fields(Checkpoint)}
    return CheckpointOut(**{**values, "metrics": encode_values(checkpoint.metrics), "kept_for": kept_for})
