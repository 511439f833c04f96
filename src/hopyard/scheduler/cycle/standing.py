"""What is known of a cluster between turns, and kept up by what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hopyard.domain.cluster import Node, Running, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.quota import path
from hopyard.scheduler.cycle.borrowed import Borrowed
from hopyard.scheduler.cycle.changes import changed_keys, difference
from hopyard.scheduler.cycle.fullness import Fullness
from hopyard.scheduler.cycle.line import Line, Rank, Shape
from hopyard.scheduler.cycle.slices import Slices
from hopyard.scheduler.cycle.wanted import Wanted
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.fit import never_fits
from hopyard.scheduler.placement.ground import same_machine
from hopyard.scheduler.service import service_class
from hopyard.scheduler.timeline.future import Future

FEW_NODES = 8  # more than so many at once are taken in by laying everything out anew


class Standing:
    """Of the newest snapshot that it was told.

    capacity, accounts: what is free and used now. whole: what the nodes would have free if nothing ran and
    all were open. future: who holds resources, and until when. line: who waits. by_queue: who holds
    resources, by queue.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._unused: Accounts | None = None
        self.fullness = Fullness()
        self._priorities: dict[QueueName, Counter[int]] = {}
        self.by_queue: dict[QueueName, dict[GangId, Running]] = {}
        self.stopping: dict[GangId, Running] = {}
        self._wanted = Wanted()
        self._lay_out_nodes()
        self._open_accounts()
        self.future = Future.of(
            snapshot.running, snapshot.durations, snapshot.now, grace_s=snapshot.preempt_grace_s
        )
        self._form_line()
        for shape in self.line.shapes:
            self._wanted.count(shape.example, shape.waiting)
        for running in snapshot.running:
            self._holds(running)
        self._weigh()

    def follow(self, snapshot: Snapshot) -> None:
        """Take in what is different in this snapshot."""
        before, self.snapshot = self.snapshot, snapshot
        ended, begun = difference(before.running, snapshot.running)
        self._follow_running(ended, begun)
        self.future.at(snapshot.now, snapshot.durations, grace_s=snapshot.preempt_grace_s)
        nodes = [
            name
            for name in changed_keys(before.nodes, snapshot.nodes)
            if before.nodes.get(name) != snapshot.nodes.get(name)
        ]
        if len(nodes) > FEW_NODES:
            self._lay_out_nodes()
        else:
            for name in nodes:
                self._follow_node(name, before.nodes.get(name))
        if snapshot.queues != before.queues or any(
            _counts_anew(before.nodes.get(name), snapshot.nodes.get(name)) for name in nodes
        ):
            self._open_accounts()
        else:
            for name in nodes:
                self.accounts.set_node(before.nodes[name], snapshot.nodes[name])
            self.accounts.set_used(snapshot.used, snapshot.now)
        self._follow_pending(before)
        self._weigh()

    def _follow_pending(self, before: Snapshot) -> None:
        gone, come = difference(before.pending, self.snapshot.pending)
        for gang in gone:
            self._wanted.count(gang, -1)
        for gang in come:
            self._wanted.count(gang, 1)
        if self.snapshot.queues != before.queues:
            self._form_line()
            for running in self.snapshot.running:
                self.slices.add(running)
            return
        for gang in gone:
            self.line.remove(gang)
        for gang in come:
            self.line.add(gang)

    def hopeless(self, shape: Shape) -> bool:
        """Whether no gang of this shape would fit if nothing ran and all nodes were open."""
        found = self._hopeless.get(shape)
        if found is None:
            empty = bool(self.snapshot.nodes)
            found = self._hopeless[shape] = empty and not _holds(self.whole, shape.example)
        return found

    def never_allowed(self, gang: Gang) -> bool:
        """Whether its queue could not let it start if nothing ran."""
        if self._unused is None:
            snapshot = self.snapshot
            self._unused = Accounts.of(snapshot.queues, snapshot.nodes.values(), (), {}, snapshot.now)
        return self._unused.refusal(gang) is not None

    def never_fits(self) -> Callable[[Gang], str | None]:
        """Why a gang never fits, or None, as of now."""
        whole, nodes = self.whole.copy(), self.snapshot.nodes

        def why(gang: Gang) -> str | None:
            if not nodes or _holds(whole, gang):
                return None
            return never_fits(gang, nodes.values())

        return why

    def _lay_out_nodes(self) -> None:
        self.fullness.forget()
        nodes = self.snapshot.nodes.values()
        self.capacity = Capacity.of(nodes, (running.placement for running in self.snapshot.running))
        self.whole = Capacity.of(node.opened() for node in nodes)
        self._hopeless: dict[Shape, bool] = {}
        self._unused = None

    def _open_accounts(self) -> None:
        snapshot = self.snapshot
        self.borrowed = Borrowed(snapshot.queues, snapshot.nodes, self.by_queue)
        self.accounts = Accounts.of(
            snapshot.queues, snapshot.nodes.values(), snapshot.running, snapshot.used, snapshot.now
        )

    def _weigh(self) -> None:
        """Room is kept for the shapes that wait and run."""
        self.capacity.weigh(self._wanted.mix())

    def _form_line(self) -> None:
        queues = self.snapshot.queues
        self._unused = None
        self.ranking = rank_in(queues)
        self.line = Line(self.snapshot.pending, self.ranking)
        self.slices = Slices(queues)
        above = {queue.parent for queue in queues.queues.values()}
        self.leaves = sorted(name for name in queues.queues if name not in above)
        self.leaves_below: dict[QueueName, list[QueueName]] = {}  # and the leaves themselves
        for leaf in self.leaves:
            for name in path(queues, leaf):
                self.leaves_below.setdefault(name, []).append(leaf)

    def _follow_node(self, name: NodeId, before: Node | None) -> None:
        node = self.snapshot.nodes.get(name)
        self._unused = None
        if node is None:
            self.capacity.drop_node(name)
            self.whole.drop_node(name)
            self._hopeless.clear()
            return
        self.capacity.set_node(node)
        self.fullness.freed([name])
        if before is None or not same_machine(before, node):
            self.whole.set_node(node.opened())
            self._hopeless.clear()

    def _follow_running(self, ended: Iterable[Running], begun: Sequence[Running]) -> None:
        gone = {running.gang.id: running for running in ended}
        left: list[Placement] = []
        come: list[Placement] = []
        for running in begun:
            before = gone.pop(running.gang.id, None)
            if before is None or before.placement != running.placement:
                if before is not None:
                    left.append(self._end(before))
                come.append(running.placement)
            self._holds(running)
        self.future.add_all(begun)
        for running in gone.values():
            left.append(self._end(running))
            self.future.drop(running.gang.id)
        self.capacity.give_back_all(left)
        self.accounts.credit_all(left)
        self.capacity.take_all(come)
        self.accounts.charge_all(come)

    def lowest_priority(self, queue: QueueName) -> int | None:
        """Of the runs of a queue that may be preempted."""
        return min(self._priorities.get(queue, ()), default=None)

    def _rank(self, gang: Gang, by: int) -> None:
        if gang.preemptible:
            counts = self._priorities.setdefault(gang.queue, Counter())
            counts[gang.priority] += by
            if not counts[gang.priority]:
                del counts[gang.priority]

    def _holds(self, running: Running) -> None:
        of_queue = self.by_queue.setdefault(running.gang.queue, {})
        if running.gang.id not in of_queue:
            self._wanted.count(running.gang, 1)
            self._rank(running.gang, 1)
        of_queue[running.gang.id] = running
        self.borrowed.changed(running.gang.queue)
        self.slices.add(running)
        if running.stopping:
            self.stopping[running.gang.id] = running
        else:
            self.stopping.pop(running.gang.id, None)

    def _end(self, running: Running) -> Placement:
        """What is to be given back."""
        self.stopping.pop(running.gang.id, None)
        of_queue = self.by_queue[running.gang.queue]
        del of_queue[running.gang.id]
        self._wanted.count(running.gang, -1)
        self._rank(running.gang, -1)
        self.borrowed.ended(running)
        self.slices.drop(running)
        self.fullness.freed(assignment.node for assignment in running.placement.assignments)
        if not of_queue:
            del self.by_queue[running.gang.queue]
        return running.placement


def rank_in(queues: QueueTree) -> Callable[[Gang], Rank]:
    """Who comes first in a queue, whoever they belong to."""
    slicing = {name for name, queue in queues.queues.items() if queue.time_slices}

    def rank(gang: Gang) -> Rank:
        return -gang.priority, service_class(gang, gang.served_s) if gang.queue in slicing else 0

    return rank


def _holds(whole: Capacity, gang: Gang) -> bool:
    """As `placement.explain.fits`: whether its smallest size finds a place."""
    smallest = gang.sized([role.fewest for role in gang.roles])
    return whole.place(smallest, score="first-fit") is not None or (
        len(gang.roles) > 1 and whole.place(smallest) is not None
    )


def _counts_anew(before: Node | None, after: Node | None) -> bool:
    """Whether what was charged on this node may count otherwise now: accounts name GPUs by what the node says
    of them."""
    return before is None or after is None or before.gpus != after.gpus
