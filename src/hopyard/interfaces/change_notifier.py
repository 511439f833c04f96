from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ChangeNotifier(Protocol):
    """An ability of engines that notify of changes of their attempts, so that the caller need not poll."""

    async def wait_for_change(self) -> None:
        """Until `observe` may say something else than when this was last called, or at once where it may
        already. What came of a `launch`, `stop` or `forget` of the caller's own need not be told. One waits
        at a time; a lost call loses nothing that an `observe` does not show."""
