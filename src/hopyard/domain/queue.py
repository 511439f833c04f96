"""The tree of queues: what each is sure of, may borrow, must lend, and who may use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hopyard.domain.gang import DEFAULT_PRIORITY
from hopyard.domain.ids import DEFAULT_QUEUE, QueueName

# Amounts by the name of a resource: "cpu" in thousandths of a core, "memory" in bytes, "gpu" in thousandths
# of a GPU of any model, "gpu:MODEL" (lower case) in thousandths of one of that model, any other name in whole
# units of that extra.
Amounts = Mapping[str, int]
CPU, MEMORY, GPU, GPU_OF = "cpu", "memory", "gpu", "gpu:"


@dataclass(frozen=True, slots=True)
class Queue:
    """One node of the tree. Runs wait in leaves only.

    guarantee: what it gets whenever it wants it. maximum: the most that it ever uses; a resource that is not
    named has no limit of its own. borrow_limit: the most it uses beyond its guarantee; lend_limit: the most
    of its idle guarantee that others may use (not named: all of it). weight: its part of what siblings
    compete for. user_limit: the most that one user uses in it at a time.
    submitters, admins: names of users, () means everybody may submit, only the server's owner may administer;
    both are inherited by children that name nobody. priorities: lowest and highest that a run of a user may
    ask for (administrators and the owner may ask for any); user_priorities: the highest that each of these
    users may ask for, above that; default_priority: what it has when it asks for none.
    reclaims: takes back what it lent by preemption. preempts_lower: its runs of higher priority preempt its
    own lower ones. no_preempt: its users' runs may ask never to be preempted.
    time_slices: runs that were served long give way to those that were served little (see
    scheduler/time_slicing.py).
    """

    name: QueueName
    parent: QueueName | None = None
    weight: float = 1.0
    guarantee: Amounts = field(default_factory=dict)
    maximum: Amounts = field(default_factory=dict)
    borrow_limit: Amounts = field(default_factory=dict)
    lend_limit: Amounts = field(default_factory=dict)
    user_limit: Amounts = field(default_factory=dict)
    submitters: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    priorities: tuple[int, int] = (0, DEFAULT_PRIORITY)
    default_priority: int = DEFAULT_PRIORITY
    reclaims: bool = True
    preempts_lower: bool = True
    time_slices: bool = False
    no_preempt: bool = True
    user_priorities: Mapping[str, int] = field(default_factory=dict)

    def priority_range_of(self, user: str) -> tuple[int, int]:
        """The lowest and the highest priority that the user may ask for without administering the queue."""
        low, high = self.priorities
        return low, max(high, self.user_priorities.get(user, high))


@dataclass(frozen=True, slots=True)
class QueueTree:
    """All queues by name, parents before children. Checked where it is made (config/queues/queue_file.py): no
    cycle, no unknown parent, guarantees of children within the parent's.

    default: where a run goes that names no queue. half_life_s: after this long, past use weighs half.
    """

    queues: Mapping[QueueName, Queue]
    default: QueueName = DEFAULT_QUEUE
    half_life_s: float = 7 * 86400.0


# what there is before anybody declares a tree
SINGLE_QUEUE_TREE = QueueTree({DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)})


@dataclass(frozen=True, slots=True)
class PastUsage:
    """What a user has used through a queue, in seconds of the cluster's dominant resource (1.0: the whole
    cluster for one second), decayed to `at`."""

    share_seconds: float
    at: datetime
