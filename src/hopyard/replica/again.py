"""When the process of a study's replica, which ended badly, is begun again: here, or in another attempt."""

from __future__ import annotations

import math
from dataclasses import replace

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.study import GOES_ON

_WITHIN_S = 600.0  # killed once more in that time, and it is no accident


class Again:
    """Only for what its gang can do without, the workers of a study: one that was killed is missing until the study's end, and all that
    it held is made good when it is back."""

    def __init__(self, launch: ReplicaLaunch) -> None:
        self._may = launch.study is not None and not launch.essential
        self._last = -math.inf

    def allows(self, ended: Exit, now: float) -> bool:
        """Whether to start it again in its place. now: monotonic seconds."""
        if not self._may or ended.kind is not ExitKind.SIGNAL or now - self._last < _WITHIN_S:
            return False
        self._last = now
        return True


def as_a_study_ends(ended: Exit) -> Exit:
    """It knows where it was: where it was killed, or asks for that, the next attempt goes on from there."""
    if ended.kind is ExitKind.SIGNAL:
        return replace(ended, kind=ExitKind.LOST)
    if ended.kind is ExitKind.EXIT_CODE and ended.code == GOES_ON:
        return replace(ended, kind=ExitKind.LOST, reason=ended.reason.partition(": ")[2] or ended.reason)
    return ended
