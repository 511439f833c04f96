"""Records that a server is up, for the other servers of its database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from hopyard.domain.cluster import ServerRecord
from hopyard.errors import HopyardError
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore

HEARTBEAT_INTERVAL = timedelta(seconds=5)
HEARTBEAT_TIMEOUT = 3 * HEARTBEAT_INTERVAL  # a server without a record for so long counts as down
log = logging.getLogger("hopyard.controller")


async def run_heartbeat(
    cluster: ClusterStore, clock: Clock, *, server_record: Callable[[datetime], ServerRecord]
) -> None:
    """Records the heartbeat at every interval, until cancelled. server_record: returns the record to
    store."""
    while True:
        try:
            await cluster.record_server(server_record(clock.now()))
        except HopyardError as error:  # the database may be down for a while
            log.warning("the heartbeat of this server was not recorded: %s", error.message)
        await clock.sleep_until(clock.now() + HEARTBEAT_INTERVAL)
