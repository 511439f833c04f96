"""Progress of the running runs of a cluster."""

from __future__ import annotations

from hopyard.domain.cluster import Snapshot
from hopyard.domain.ids import GangId, RunId
from hopyard.tracking.ingest import StreamIngest


def completed_fractions(ingest: StreamIngest, snapshot: Snapshot) -> dict[GangId, float]:
    """Returns the completed fraction of each run that reports its progress, 0 to 1."""
    fractions: dict[GangId, float] = {}
    for running in snapshot.running:
        live = ingest.find_live_run(RunId(running.gang.id))
        progress = None if live is None else live.progress
        if progress is not None and progress.total:
            fractions[running.gang.id] = progress.done / progress.total
    return fractions
