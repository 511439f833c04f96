"""Finds the checkpoint that a reference names: `RUN@STEP`, `RUN@newest` or `RUN@best`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from hopyard.api_client.client import Client
from hopyard.errors import IntegrityError, NotFound, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

BEST: Final = "best"
NEWEST: Final = "newest"
CheckpointChoice = Literal["best", "newest"] | int | None


def split_reference(ref: str) -> tuple[str, CheckpointChoice]:
    """Returns the run of `RUN@CHECKPOINT` and the choice of its checkpoint, None without `@`. Raises
    SpecError."""
    run, separator, choice = ref.partition("@")
    return run, parse_choice(choice, what=ref) if separator else None


def parse_choice(text: str | None, *, what: str) -> CheckpointChoice:
    """Returns `newest`, `best` or a step. what: the name of the option or the reference, for the error.
    Raises SpecError."""
    if text is None:
        return None
    if text == NEWEST:
        return NEWEST
    if text == BEST:
        return BEST
    if not text.isascii() or not text.isdecimal():
        raise SpecError(
            f"{what}: `{text}` is not `newest`, `best` or a step",
            hints=("`hop checkpoint ls RUN` lists the checkpoints",),
        )
    return int(text)


def is_resumable(checkpoint: api.CheckpointOut) -> bool:
    """Returns whether an attempt can start from it: it is undamaged, and not one of the script itself."""
    return not checkpoint.get("damaged") and not checkpoint.get("path")


def find_checkpoint(
    client: Client, run: api.RunOut, choice: CheckpointChoice, *, what: str
) -> api.CheckpointOut:
    """Returns the chosen checkpoint. what: the option or the reference, for the error.

    Raises NotFound for a missing one, IntegrityError for a damaged one, and SpecError if no metric decides
    which one is the best.
    """
    listed = list(client.iterate_run_checkpoints(run["id"]))
    undamaged = [checkpoint for checkpoint in listed if not checkpoint.get("damaged")]
    steps = ", ".join(str(step) for step in sorted({c["step"] for c in undamaged}))
    if not listed:
        raise NotFound(
            f"{what}: {run['name']} has no checkpoint",
            hints=("save checkpoints in the script with `hop.bind` and `hop.loop`, or with `hop.save`",),
        )
    if choice == BEST:
        best = next((checkpoint for checkpoint in undamaged if checkpoint.get("best")), None)
        if best is None:
            raise SpecError(
                f"{what}: no metric decides which checkpoint of {run['name']} is the best",
                hints=(
                    'log a metric and name it: `hop.loop(…, keep_best="val_loss")`',
                    f"it has the steps {steps}" if steps else "all its checkpoints are damaged",
                ),
            )
        return best
    found = undamaged if choice in (None, NEWEST) else [c for c in undamaged if c["step"] == choice]
    if found:
        return found[-1]
    if choice in (None, NEWEST) or any(checkpoint["step"] == choice for checkpoint in listed):
        raise IntegrityError(
            f"{what}: the checkpoint of step {choice} of {run['name']} is damaged"
            if steps
            else f"{what}: all checkpoints of {run['name']} are damaged",
            hints=(f"it has: {steps or 'no other'}",),
        )
    raise NotFound(
        f"{what}: {run['name']} has no checkpoint at step {choice}", hints=(f"it has: {steps or 'none'}",)
    )
