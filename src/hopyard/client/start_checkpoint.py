"""The checkpoint from which a new run starts: `hop run --from RUN@STEP`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.checkpoint_lookup import find_checkpoint, is_resumable
from hopyard.client.run_lookup import get_run
from hopyard.errors import NotFound, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def find_start_checkpoint(client: Client, reference: str) -> api.ResumeIn:
    """Returns the checkpoint that `RUN`, `RUN@newest`, `RUN@best` or `RUN@STEP` names.

    Raises SpecError, NotFound.
    """
    ref, at, choice = reference.partition("@")
    if at and choice not in ("newest", "best") and not (choice.isascii() and choice.isdecimal()):
        raise SpecError(
            f"--from: `{choice}` is neither `newest` nor a step",
            hints=("`hop info RUN` lists the checkpoints",),
        )
    run = get_run(client, ref)
    if run["spec"].get("study") is not None:
        raise SpecError(
            f"--from: {run['name']} is a study: its checkpoints hold the states of its trials",
            hints=("name the run of one trial: `hop search show STUDY` lists them",),
        )
    checkpoints = list(filter(is_resumable, client.iterate_run_checkpoints(run["id"])))
    if choice == "best":
        checkpoints = [find_checkpoint(client, run, "best", what="--from")]
    found = [each for each in checkpoints if choice in ("", "newest", "best", str(each["step"]))]
    if not found:
        steps = ", ".join(dict.fromkeys(str(each["step"]) for each in checkpoints))
        raise NotFound(
            f"--from: {run['name']} has no checkpoint" + (f" of step {choice}" if steps else ""),
            hints=(f"choose one of the steps {steps}",) if steps else (),
        )
    return {"run": run["id"], "step": found[-1]["step"], "manifest": found[-1]["manifest"]}
