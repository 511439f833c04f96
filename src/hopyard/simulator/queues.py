"""The queues that a workload needs, and the check that they exist."""

from __future__ import annotations

from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.queue import SINGLE_QUEUE_TREE, Queue, QueueTree
from hopyard.errors import SpecError
from hopyard.simulator.workload import Workload


def workload_queue_tree(workload: Workload) -> QueueTree:
    """Returns a tree with one leaf for each queue that the workload names, all alike."""
    names = sorted(
        {run.spec.queue for run in workload.runs if run.spec.queue is not None} | {SINGLE_QUEUE_TREE.default}
    )
    return QueueTree({name: Queue(name) for name in names})


def check_queues(workload: Workload, tree: QueueTree) -> None:
    """Raises SpecError when a run names a queue that does not exist, or that is not a leaf."""
    leaves = tree.queues.keys() - {queue.parent for queue in tree.queues.values()}
    for run in workload.runs:
        queue = run.spec.queue or tree.default
        if queue not in leaves:
            location = ": ".join(filter(None, (workload.source or workload.name, workload.location_of(run))))
            problem = "is divided into others" if queue in tree.queues else "is not in the tree of queues"
            hints = unknown_name_hints(queue, sorted(leaves), subject="queues")
            raise SpecError(
                f"{location}: the queue `{queue}` {problem}",
                hints=(*hints, "`--queue NAME` puts all runs into one"),
            )
