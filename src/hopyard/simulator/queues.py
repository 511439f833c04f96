"""Which queues a workload needs, and whether they are there."""

from __future__ import annotations

from hopyard.config.suggest import hints_for
from hopyard.domain.queue import ONE_QUEUE, Queue, QueueTree
from hopyard.errors import SpecError
from hopyard.simulator.workload import Workload


def tree_of(workload: Workload) -> QueueTree:
    """A leaf for each queue that the workload names, all alike."""
    names = sorted(
        {one.spec.queue for one in workload.runs if one.spec.queue is not None} | {ONE_QUEUE.default}
    )
    return QueueTree({name: Queue(name) for name in names})


def check_queues(workload: Workload, tree: QueueTree) -> None:
    """Raises SpecError when a run names a queue that is not there, or in which none waits."""
    leaves = tree.queues.keys() - {queue.parent for queue in tree.queues.values()}
    for one in workload.runs:
        queue = one.spec.queue or tree.default
        if queue not in leaves:
            where = ": ".join(filter(None, (workload.source or workload.name, workload.place(one))))
            what = "is divided into others" if queue in tree.queues else "is not in the tree of queues"
            hints = hints_for(queue, sorted(leaves), what="queues")
            raise SpecError(
                f"{where}: the queue `{queue}` {what}",
                hints=(*hints, "`--queue NAME` puts all runs into one"),
            )
