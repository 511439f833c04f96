"""Expected ends of running gangs, and the spans of promised ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hopyard.domain.cluster import Promise, Snapshot
from hopyard.domain.ids import GangId, NodeId, Version
from hopyard.scheduler.explain.planned_spans import expected_ends, promised_spans
from tests.scheduler.queue_trees import T0, cluster, gang, queue, running, tree

HOUR = timedelta(hours=1)


def test_spans_use_time_limits_and_promises() -> None:
    live = running(replace(gang("live", "a", gpus=1), time_limit_s=3600))
    waiting = [replace(gang(name, "a", gpus=1), time_limit_s=7200) for name in ("soon", "late", "other")]
    snapshot = Snapshot(
        Version(1),
        T0 + HOUR / 2,
        {node.id: node for node in cluster(gpus=8)},
        pending=tuple(waiting),
        running=(replace(live, started_at=T0),),
        queues=tree(queue("a")),
        promises={
            GangId("soon"): Promise(GangId("soon"), T0 + HOUR, T0, (NodeId("all"),)),
            GangId("late"): Promise(GangId("late"), T0, T0),  # overdue
            GangId("gone"): Promise(GangId("gone"), T0, T0),
        },
    )
    assert expected_ends(snapshot) == {GangId("live"): T0 + HOUR}
    assert [(span.gang.id, span.start_at, span.end_at, span.nodes) for span in promised_spans(snapshot)] == [
        (GangId("late"), T0 + HOUR / 2, T0 + 2.5 * HOUR, ()),
        (GangId("soon"), T0 + HOUR, T0 + 3 * HOUR, (NodeId("all"),)),
    ]
