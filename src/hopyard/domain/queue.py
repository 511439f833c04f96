"""The tree of queues: the guarantee, limits and permissions of each queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hopyard.domain.gang import DEFAULT_PRIORITY
from hopyard.domain.ids import DEFAULT_QUEUE, QueueName

# Amounts by resource name: "cpu" in thousandths of a core, "memory" in bytes, "gpu" in thousandths of a GPU
# of any model, "gpu:MODEL" (lower case) in thousandths of one of that model, any other name in whole units of
# that extra.
Amounts = Mapping[str, int]
CPU, MEMORY, GPU, GPU_OF = "cpu", "memory", "gpu", "gpu:"


@dataclass(frozen=True, slots=True)
class Queue:
    """One node of the tree. Runs wait in leaves only.

    guarantee: what the queue gets on request at any time. maximum: the most that it may use; a resource that
    is not named has no maximum of its own. borrow_limit: the most that it may use beyond its guarantee.
    lend_limit: the most of its idle guarantee that others may use (not named: all of it). weight: its share
    in the competition with siblings. user_limit: the most that one user may use in it at a time.

    submitters, admins: names of users. () means that all users may submit, and that only the server's owner
    may administer. Children without names of their own inherit both. priorities: the lowest and the highest
    priority that a user may request; administrators and the owner may request any. user_priorities: a higher
    limit for some users. default_priority: for runs that request none.

    reclaims: reclaims lent capacity by preemption. preempts_lower: its runs of higher priority preempt its
    own runs of lower priority. no_preempt: users may submit runs that are never preempted. time_slices: runs
    that were served long are preempted for runs that were served little (see scheduler/time_slicing.py).
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
        """Returns the lowest and the highest priority that the user may request without administering the
        queue."""
        low, high = self.priorities
        return low, max(high, self.user_priorities.get(user, high))


@dataclass(frozen=True, slots=True)
class QueueTree:
    """All queues by name, parents before children.

    Validated where it is created (config/queues/queue_file.py): it has no cycle and no unknown parent, and
    the children's guarantees are within the parent's. default: the queue of runs that name none. half_life_s:
    past use counts half after this time.
    """

    queues: Mapping[QueueName, Queue]
    default: QueueName = DEFAULT_QUEUE
    half_life_s: float = 7 * 86400.0


# the tree of a server without a declared tree
SINGLE_QUEUE_TREE = QueueTree({DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)})


@dataclass(frozen=True, slots=True)
class PastUsage:
    """The past use of a user through a queue, in seconds of the cluster's dominant resource, decayed to `at`.
    1.0 is the whole cluster for one second."""

    share_seconds: float
    at: datetime
