"""Lists runs in some phases, also those of a server that does not know all of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_NEW_PHASE = "paused"  # an older server has no such phase, and refuses the name


def list_runs_in_phases(client: Client, phases: Collection[str], **filters: Any) -> list[api.RunOut]:
    """Returns the runs in these phases, or in all without any. filters: those of `iterate_runs`."""

    def fetch(phases: Collection[str]) -> list[api.RunOut]:
        return list(client.iterate_runs(phase=",".join(phases) or None, **filters))

    try:
        return fetch(phases)
    except SpecError:
        known = [phase for phase in phases if phase != _NEW_PHASE]
        if not known or len(known) == len(phases):
            raise
        return fetch(known)
