from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hopyard.domain.saved_view import SavedView


class SavedViewStore(Protocol):
    """Views that users keep. They are removed with their user."""

    async def put(self, view: SavedView, /, *, base: int | None = None) -> SavedView:
        """Stores a view in place of one with its user and name, and returns it with its revision.

        base: the revision that it replaces; 0 if no such view exists; None for any. A view with the content
        that is stored already changes nothing. Raises Conflict for another revision, and if the user has
        `MAX_VIEWS` others.
        """
        ...

    async def get(self, user: str, name: str, /) -> SavedView:
        """Raises NotFound."""
        ...

    async def list_visible(self, user: str, /) -> Sequence[SavedView]:
        """Returns the user's own views and the shared ones of others, by user and name, the user's own
        first."""
        ...

    async def remove(self, user: str, name: str, /, *, base: int | None = None) -> None:
        """Removes a view. base: its revision; None for any. Raises NotFound; Conflict for another
        revision."""
