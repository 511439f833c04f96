"""Recording that a server is up, for the other servers of its database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from hopyard.domain.cluster import KnownServer
from hopyard.errors import HopyardError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore

EVERY = timedelta(seconds=5)
AWAY_AFTER = 3 * EVERY  # without a record of it, a server counts as away
log = logging.getLogger("hopyard.controller")


async def keep_heartbeat(
    cluster: ClusterStore, clock: Clock, *, server: Callable[[datetime], KnownServer]
) -> None:
    """Until cancelled. server: what is recorded of it at a moment."""
    while True:
        try:
            await cluster.note_server(server(clock.now()))
        except HopyardError as error:  # a database that is away for a while
            log.warning("it was not recorded that this server is up: %s", error.message)
        await clock.sleep_until(clock.now() + EVERY)
