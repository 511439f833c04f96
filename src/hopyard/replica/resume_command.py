"""The command of an attempt that begins with a checkpoint: its resume arguments filled in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from hopyard.config.key_values import parse_params
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.resume_arguments import parse_resume_arguments
from hopyard.domain.run import RunEventKind
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.run_folder import RunFolder


def with_resume_arguments(
    launch: ReplicaLaunch,
    run_folder: RunFolder,
    folder: ReplicaDir,
    *,
    restored: bool,
    newest: Sequence[str] = (),
) -> tuple[ReplicaLaunch, tuple[str, ...]]:
    """Returns the launch with the parameters of its resume arguments, and the words for the end of its
    command. Both are unchanged and empty for a process that begins with no checkpoint.

    restored: it begins with a checkpoint of `hop.save` or `hop.loop`. newest: the checkpoints that earlier
    processes of this attempt have written, the newest first.
    """
    if not launch.resume_arguments:
        return launch, ()
    candidates = dict.fromkeys((*newest, *launch.own_checkpoints, *run_folder.restored_checkpoints()))
    found = next(filter(run_folder.contains, candidates), None)
    if found is not None:
        place, name = str(run_folder.gang.path_in_place(run_folder.location(found))), found.partition("/")[2]
    elif restored:
        place, name = str(folder.restore), "saved by Hopyard"
    else:
        return launch, ()
    filled = parse_resume_arguments(launch.resume_arguments).filled(place)
    params = {**launch.params, **parse_params(filled.params, what="--resume-arg")}
    if launch.rank == 0:
        sentence = f"resumes with {' '.join(launch.resume_arguments)}; the checkpoint is {name}"
        with suppress(OSError):  # on a full disk it is not written
            folder.append_json("events", kind=RunEventKind.RESUMED, text=sentence)
    return replace(launch, params=params), filled.words
