from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hopyard.domain.saved_view import SavedView


class SavedViewStore(Protocol):
    """Views that users keep. They are removed with their user."""

    async def put(self, view: SavedView, /) -> None:
        """Stores a view in place of one with its user and name. Raises Conflict if the user has
        `MAX_VIEWS` others."""

    async def get(self, user: str, name: str, /) -> SavedView:
        """Raises NotFound."""
        ...

    async def list_visible(self, user: str, /) -> Sequence[SavedView]:
        """Returns the user's own views and the shared ones of others, by user and name, the user's own
        first."""
        ...

    async def remove(self, user: str, name: str, /) -> None:
        """Raises NotFound."""
