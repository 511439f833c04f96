"""Whether the process of a replica starts again after its end, within the same attempt."""

from __future__ import annotations

from collections.abc import Sequence

from hopyard.backports import StrEnum, dataclass
from hopyard.domain.attempt import Exit, ExitKind

MAX_RESTARTS = 1000  # the largest limit
MAX_BACKOFF_S = 300.0
RESTART_COUNT_VARIABLE = "HOPYARD_RESTART_COUNT"
RESTART_STEPS_VARIABLE = "HOPYARD_RESTART_STEPS"  # of this attempt, that the restored checkpoint holds


class RestartMode(StrEnum):
    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"  # also after a success


# ends of the process that another start may avoid; all others end the replica, too
_RESTARTABLE_KINDS = frozenset({ExitKind.EXIT_CODE, ExitKind.SIGNAL, ExitKind.OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The rule of a role.

    limit: restarts of each replica in one attempt. window_s: only restarts within these last seconds count;
    None counts all. backoff_s: the delay before the first restart; each further one doubles it, up to
    MAX_BACKOFF_S.
    """

    mode: RestartMode = RestartMode.NEVER
    limit: int = 3
    window_s: float | None = None
    backoff_s: float = 1.0

    def allows(self, exit: Exit) -> bool:
        """Returns whether a process that ended like this starts again, within the limit."""
        if self.mode is RestartMode.NEVER or exit.kind not in _RESTARTABLE_KINDS:
            return False
        return self.mode is RestartMode.ALWAYS or not exit.is_success

    def delay_s(self, restarted_at: Sequence[float], now: float) -> float | None:
        """Returns the delay before the next restart; None once the limit is reached.

        restarted_at: the seconds of the earlier restarts, by the clock of `now`.
        """
        window_s = self.window_s
        count = sum(window_s is None or now - at < window_s for at in restarted_at)
        if count >= self.limit:
            return None
        return min(self.backoff_s * 2.0 ** min(count, 32), MAX_BACKOFF_S)

    def exceeded_text(self) -> str:
        """Returns the text that follows the reason of an exit once the limit is reached."""
        times = "1 restart" if self.limit == 1 else f"{self.limit} restarts"
        window = "" if self.window_s is None else f" in {self.window_s:g} s"
        return f"no restart is left of {times}{window}"


NO_RESTART = RestartPolicy()
