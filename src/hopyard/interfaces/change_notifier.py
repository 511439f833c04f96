from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ChangeNotifier(Protocol):
    """Implemented by engines that notify of changes of their attempts, so that the caller need not poll."""

    async def wait_for_change(self) -> None:
        """Waits until `observe` may differ from its result at the last call; returns at once if it may differ
        already.

        Effects of the caller's own `launch`, `stop` or `forget` need not be notified. Only one caller waits
        at a time. A lost notification loses no information, because `observe` returns the full state.
        """
