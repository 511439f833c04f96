"""Under which names the durations of finished runs are kept, so that the next alike can be predicted."""

from __future__ import annotations

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.gang import Gang
from hopyard.domain.run import RunPhase

MAX_DURATIONS = 256  # newest durations kept under each name
MIN_DURATION_S = 1.0  # a shorter run did nothing that tells how long its like takes


def total_gpus(gang: Gang) -> int:
    """GPUs that all replicas ask for together, shares rounded up to one each."""
    return sum(
        role.replicas * (role.resources.gpus or int(role.resources.is_gpu_share)) for role in gang.roles
    )


def history_keys(gang: Gang) -> tuple[str, ...]:
    """From the most telling to the least: this user's runs of this script with as many GPUs, this user's of
    this script, this queue's with as many GPUs, this queue's, anybody's with as many GPUs, anybody's. A gang
    without a script has no key that names one."""
    gpus = total_gpus(gang)
    mine = (
        (f"script:{gang.user}/{gang.script}/{gpus}", f"script:{gang.user}/{gang.script}")
        if gang.script
        else ()
    )
    return (*mine, f"queue:{gang.queue}/{gpus}", f"queue:{gang.queue}", f"gpus:{gpus}", "all")


def is_usable_duration(phase: RunPhase, exit: Exit | None, seconds: float) -> bool:
    """Whether the duration of a run that ended so is kept: of one that succeeded, or reached its time limit
    (its like takes at least so long). One that failed (a typo, too little memory) or was stopped tells when
    that happened, not how long the work takes."""
    worked = phase is RunPhase.SUCCEEDED or (exit is not None and exit.kind is ExitKind.TIME_LIMIT)
    return worked and seconds >= MIN_DURATION_S
