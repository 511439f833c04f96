"""Lists the commands that users gave to a live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.errors import NotFound

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def list_run_commands(client: Client, run: api.RunOut) -> list[api.CommandOut]:
    """Returns the commands of a run in the order of their numbers; none from a server without commands."""
    try:
        return client.get_run_commands(run["id"])["commands"]
    except NotFound:  # an older server
        return []
