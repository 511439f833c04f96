"""Forgetting records of the audit log that are older than what is kept."""

from __future__ import annotations

import logging
from datetime import timedelta

from hopyard.errors import HopyardError
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.clock import Clock

EVERY = timedelta(hours=6)
log = logging.getLogger("hopyard.controller")


async def keep_audit(store: AuditStore, clock: Clock, *, keep: timedelta | None) -> None:
    """Prune now and then, until cancelled. keep: None keeps everything."""
    while keep is not None:
        try:
            gone = await store.prune(clock.now() - keep)
            if gone:
                log.info("%d records of the audit log were older than %d days", gone, keep.days)
        except HopyardError as error:
            log.warning("the audit log was not pruned: %s", error.message)
        await clock.sleep_until(clock.now() + EVERY)
