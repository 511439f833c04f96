"""How far the runs of a cluster say they are."""

from __future__ import annotations

from hopyard.domain.cluster import Snapshot
from hopyard.domain.ids import GangId, RunId
from hopyard.tracking.ingest import StreamIngest


def completed_fractions(ingest: StreamIngest, snapshot: Snapshot) -> dict[GangId, float]:
    """The part of all its work that each run has done, 0 to 1, of the runs that report it."""
    found: dict[GangId, float] = {}
    for running in snapshot.running:
        live = ingest.get_live_run(RunId(running.gang.id))
        said = None if live is None else live.progress
        if said is not None and said.total:
            found[running.gang.id] = said.done / said.total
    return found
