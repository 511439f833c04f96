from __future__ import annotations

from typing import Protocol

from hopyard.domain.notification import Message


class NotificationSender(Protocol):
    """Sends one notification to a target."""

    async def send(self, to: str, message: Message, /) -> None:
        """Raises HopyardError with the reason if it is not delivered."""
