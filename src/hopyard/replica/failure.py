"""Why a replica ends before, or instead of, its user's process."""

from __future__ import annotations

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.domain.replica import StopOrder


class PrepareFailed(Exception):
    """Code, data or environment could not be put in place, or the command not be started. `reason` is a sentence for people;
    `code` what a shell would say (125: the run's surroundings, 126: not executable, 127: not found)."""

    def __init__(self, reason: str, code: int = 125) -> None:
        super().__init__(reason)
        self.exit = Exit(ExitKind.PREPARE_FAILED, code, reason)


class StopRequested(BaseException):
    """SIGTERM came while the replica prepares. Not an Exception, as KeyboardInterrupt is none: nothing on the way may swallow it."""

    def __init__(self, order: StopOrder) -> None:
        super().__init__(order.reason)
        self.order = order
