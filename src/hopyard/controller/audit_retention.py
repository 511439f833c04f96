"""Removes records of the audit log that are older than the retention time."""

from __future__ import annotations

import logging
from datetime import timedelta

from hopyard.errors import HopyardError
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.clock import Clock

PRUNE_INTERVAL = timedelta(hours=6)
log = logging.getLogger("hopyard.controller")


async def run_audit_retention(store: AuditStore, clock: Clock, *, retention: timedelta | None) -> None:
    """Prunes the audit log at start and every `PRUNE_INTERVAL`, until cancelled. retention: None keeps all
    records."""
    while retention is not None:
        try:
            removed = await store.prune(clock.now() - retention)
            if removed:
                log.info("%d records of the audit log were older than %d days", removed, retention.days)
        except HopyardError as error:
            log.warning("the audit log was not pruned: %s", error.message)
        await clock.sleep_until(clock.now() + PRUNE_INTERVAL)
