"""The keys under which durations of finished runs are stored, to predict the durations of similar runs."""

from __future__ import annotations

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.gang import Gang
from hopyard.domain.run import RunPhase

MAX_DURATIONS = 256  # newest durations kept under each key
MIN_DURATION_S = 1.0  # a shorter run is no evidence of how long similar runs take


def total_gpus(gang: Gang) -> int:
    """Returns the GPUs that all replicas request, with each share rounded up to one GPU."""
    return sum(
        role.replicas * (role.resources.gpus or int(role.resources.is_gpu_share)) for role in gang.roles
    )


def history_keys(gang: Gang) -> tuple[str, ...]:
    """Returns the keys of a gang, from the most specific to the most general.

    In order: this user and script with as many GPUs; this user and script; this queue with as many GPUs; this
    queue; all runs with as many GPUs; all runs. A gang without a script has no key of a script.
    """
    gpus = total_gpus(gang)
    script_keys = (
        (f"script:{gang.user}/{gang.script}/{gpus}", f"script:{gang.user}/{gang.script}")
        if gang.script
        else ()
    )
    return (*script_keys, f"queue:{gang.queue}/{gpus}", f"queue:{gang.queue}", f"gpus:{gpus}", "all")


def is_usable_duration(phase: RunPhase, exit: Exit | None, seconds: float) -> bool:
    """Returns whether the duration of an ended run is stored.

    Stored are durations of runs that succeeded, or reached their time limit (similar runs take at least as
    long). A run that failed (a typo, too little memory) or was stopped shows no duration of the work.
    """
    is_evidence = phase is RunPhase.SUCCEEDED or (exit is not None and exit.kind is ExitKind.TIME_LIMIT)
    return is_evidence and seconds >= MIN_DURATION_S
