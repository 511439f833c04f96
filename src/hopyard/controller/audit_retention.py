"""Forgetting records of the audit log that are older than what is kept."""

from __future__ import annotations

import logging
from datetime import timedelta

from hopyard.errors import HopyardError
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.clock import Clock

PRUNE_INTERVAL = timedelta(hours=6)
log = logging.getLogger("hopyard.controller")


async def run_audit_retention(store: AuditStore, clock: Clock, *, retention: timedelta | None) -> None:
    """Prune now and then, until cancelled. retention: None keeps everything."""
    while retention is not None:
        try:
            gone = await store.prune(clock.now() - retention)
            if gone:
                log.info("%d records of the audit log were older than %d days", gone, retention.days)
        except HopyardError as error:
            log.warning("the audit log was not pruned: %s", error.message)
        await clock.sleep_until(clock.now() + PRUNE_INTERVAL)
