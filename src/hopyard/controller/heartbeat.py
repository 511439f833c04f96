"""Recording that a server is up, for the other servers of its database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from hopyard.domain.cluster import ServerRecord
from hopyard.errors import HopyardError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore

HEARTBEAT_INTERVAL = timedelta(seconds=5)
HEARTBEAT_TIMEOUT = 3 * HEARTBEAT_INTERVAL  # without a record of it, a server counts as away
log = logging.getLogger("hopyard.controller")


async def run_heartbeat(
    cluster: ClusterStore, clock: Clock, *, server_record: Callable[[datetime], ServerRecord]
) -> None:
    """Until cancelled. server_record: what is recorded of it at a moment."""
    while True:
        try:
            await cluster.record_server(server_record(clock.now()))
        except HopyardError as error:  # a database that is away for a while
            log.warning("the heartbeat of this server was not recorded: %s", error.message)
        await clock.sleep_until(clock.now() + HEARTBEAT_INTERVAL)
