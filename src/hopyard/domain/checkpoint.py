"""A state to resume from: complete or absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime

from hopyard.backports import dataclass
from hopyard.domain.ids import AttemptId, Digest, RunId

OWN_PARTS = ("run", "work")  # of a stored run folder: $HOPYARD_RUN_DIR, and files of the working folder


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a run at `step`.

    offsets: the length of each of the saving replica's streams at that time; a resume rolls back everything
    after it. kept: exempt from clean-up (best of a leaderboard, or requested). damaged: it cannot be read,
    and is not used. best_by: the metric by which the script chooses the best checkpoint: "max:val_acc" as
    requested, "val_acc" as derived from its results, "" for none. best: it has the best value of the run; set
    in listings only. path: where the script saved it itself, below `run/` or `work/`; "" for a checkpoint of
    Hopyard. The next attempt does not load it: the script finds it at the same path.
    """

    run: RunId
    attempt: AttemptId
    rank: int
    step: int
    manifest: Digest
    size_bytes: int
    created_at: datetime
    metrics: Mapping[str, float] = field(default_factory=dict)
    offsets: Mapping[str, int] = field(default_factory=dict)
    kept: bool = False
    damaged: bool = False
    best_by: str = ""
    best: bool = False
    path: str = ""

    def replaces(self, earlier: Checkpoint) -> bool:
        """Returns whether this one was saved after `earlier`, one of the same step. False for the same one
        that is sent again. The same content at a later time has other metrics or marks."""
        return self.manifest != earlier.manifest or self.created_at > earlier.created_at


def fork_candidates(checkpoints: Sequence[Checkpoint], step: int | None) -> list[Checkpoint]:
    """Returns the checkpoints from which a fork may start, in the given order. Those of Hopyard count more
    than those of the script itself. step: None for any step."""
    fitting = [checkpoint for checkpoint in checkpoints if step in (None, checkpoint.step)]
    return [checkpoint for checkpoint in fitting if not checkpoint.path] or fitting
