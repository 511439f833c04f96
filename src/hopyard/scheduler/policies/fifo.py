"""First come, first served: nobody overtakes who waits for the same nodes."""

from __future__ import annotations

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import NodeId
from hopyard.scheduler.policies.followed import Followed, Tentative
from hopyard.scheduler.policies.holds import Holds, Reasons


class Fifo:
    """Priority, then time of submission, then id.

    A gang that waits claims every node that could ever hold one of its replicas, and those behind it keep off
    these nodes. One that is larger than all nodes, or whose queue may use no more, claims none: it delays
    nobody.
    """

    def __init__(self) -> None:
        self._known: Followed[None] = Followed(lambda _: None)

    def __call__(self, snapshot: Snapshot) -> Plan:
        known = self._known
        known.follow(snapshot)
        now = Tentative(known, "best-fit")
        reasons = Reasons(now, known.hopeless, strict=True)
        claimed: set[NodeId] = set()
        for gang in known.waiting.get(None, ()):
            if known.hopeless(gang) is not None or now.accounts.refusal(gang) is not None:
                continue
            if now.start(gang) is None:
                able = known.able(gang)
                if not claimed & able:
                    reasons.blocked[gang.id] = now.capacity.copy()
                claimed |= able
                if len(claimed) == known.open_nodes:
                    break
                now.capacity.close(able)
        return Plan(snapshot.version, tuple(now.placed), Holds(snapshot.pending, now.placed, reasons))
