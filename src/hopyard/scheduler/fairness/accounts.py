"""Who may use how much of the cluster now, and who comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from hopyard.domain.amounts import decayed, dominant_share, placed, totals
from hopyard.domain.cluster import HoldReason, Node, Running
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import GPU, GPU_OF, Amounts, QueueTree, Used
from hopyard.scheduler.fairness import sentences, shares
from hopyard.scheduler.fairness.ask import Cards, asked, in_full
from hopyard.scheduler.fairness.ledger import Ledger
from hopyard.scheduler.fairness.lending import Lending
from hopyard.scheduler.fairness.limits import NOTHING, Limits

MOST_ASKS = 4096  # that are remembered
MOST_PLACED = 16_384  # likewise: of those that are gone, too
QueueKey = tuple[tuple[int, float, QueueName], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a gang may not start now however much is free. `queue`: the one whose limit it is, the gang's own
    or one above it. closed_models: models of GPUs of which no more may be used, when that is the reason.
    kept: no limit forbids it, but what others keep of their guarantees is all that is left; keepers: who they
    are."""

    reason: HoldReason
    queue: QueueName
    detail: str
    closed_models: frozenset[str] = frozenset()
    kept: bool = False
    keepers: tuple[QueueName, ...] = ()

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """As a Hold names it."""
        return tuple(f"queue:{queue}" for queue in self.keepers[:3] or (self.queue,))


class Accounts:
    """What every queue and user uses, and the questions that are asked of it. Mutable; a copy is cheap.

    The rules (docs/concepts/scheduling.md says them for people), for each resource that a gang asks for, at
    each level from its queue up: use never exceeds the maximum, nor the guarantee and what may be borrowed;
    what a queue keeps of its guarantee (lend_limit) nobody else uses. Resources that no queue names have no
    limit.
    """

    __slots__ = (
        "_asks",
        "_cards",
        "_cluster",
        "_history",
        "_keys",
        "_ledger",
        "_limits",
        "_nodes",
        "_placed",
        "_refusals",
        "_shares",
    )

    def __init__(
        self, limits: Limits, ledger: Ledger, history: Mapping[tuple[QueueName, str], float]
    ) -> None:
        self._limits = limits
        self._ledger = ledger
        self._history = history
        self._nodes: Mapping[NodeId, Node] = {}
        self._cards = Cards()
        # of roles by identity, as many gangs share
        self._asks: dict[int, tuple[tuple[Role, ...], Amounts]] = {}
        self._cluster: Amounts = NOTHING
        # of users, with what they are the shares of
        self._shares: dict[tuple[QueueName, str], tuple[Amounts, float]] = {}
        # what gangs use, as long as the cards are the same
        self._placed: dict[GangId, tuple[Placement, Amounts]] = {}
        # Of roles by identity too, until somebody is charged:
        self._keys: dict[tuple[QueueName, int], tuple[tuple[Role, ...], QueueKey]] = {}
        self._refusals: dict[tuple[QueueName, str, int], tuple[tuple[Role, ...], Refusal | None]] = {}

    @classmethod
    def of(
        cls,
        tree: QueueTree,
        nodes: Iterable[Node],
        running: Iterable[Running],
        used: Mapping[tuple[QueueName, str], Used],
        now: datetime,
    ) -> Accounts:
        """used: what was used in the past, by queue and user."""
        limits = Limits.of(tree)
        accounts = cls(limits, Ledger(limits), {})
        accounts.set_used(used, now)
        accounts.set_nodes(nodes)
        accounts.charge_all(one.placement for one in running)
        return accounts

    def set_used(self, used: Mapping[tuple[QueueName, str], Used], now: datetime) -> None:
        """What was used in the past, as it weighs now."""
        half_life_s = self._limits.tree.half_life_s
        self._history = {
            key: shares.past_share(decayed(past, now, half_life_s), half_life_s) for key, past in used.items()
        }

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """The nodes that there are now. Shares are shares of what the open ones have. What was charged stays,
        and nodes that are gone are remembered for when it is credited; a node whose GPUs became others needs
        new accounts."""
        listed = list(nodes)
        self._nodes = {**self._nodes, **{node.id: node for node in listed}}
        self._cluster, self._shares = totals(node for node in listed if node.open), {}
        self._cards, self._asks, self._placed = Cards.of(listed), {}, {}
        self._forget()

    def set_node(self, before: Node, after: Node) -> None:
        """One node is another now, with the same GPUs."""
        self._nodes = {**self._nodes, after.id: after}
        self._cards, self._asks, self._placed = self._cards.turned(before, after), {}, {}
        self._forget()
        cluster = Counter(self._cluster)
        if before.open:
            cluster.subtract(totals([before]))
        if after.open:
            cluster.update(totals([after]))
        self._cluster, self._shares = {name: amount for name, amount in cluster.items() if amount}, {}

    def _forget(self) -> None:
        """Something was charged, or amounts count otherwise."""
        self._keys.clear()
        self._refusals.clear()

    def copy(self) -> Accounts:
        other = Accounts(self._limits, self._ledger.copy(), self._history)
        other._nodes, other._cards, other._cluster = self._nodes, self._cards, self._cluster
        # as long as the cards are the same, both may learn from each other
        other._asks, other._placed = self._asks, self._placed
        other._shares = self._shares  # as long as the cluster is the same, both may learn from each other
        return other

    def __eq__(self, other: object) -> bool:
        """Whether the same was charged."""
        return self._ledger == other._ledger if isinstance(other, Accounts) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def charge(self, placement: Placement) -> None:
        gang = placement.gang
        self._ledger.add(gang.queue, gang.user, self._uses(placement), 1)
        self._forget()

    def charge_all(self, placements: Iterable[Placement]) -> None:
        """`charge` each; where they are many, much cheaper."""
        self._book_all(placements, 1)

    def credit_all(self, placements: Iterable[Placement]) -> None:
        """Exactly undo `charge_all`."""
        self._book_all(placements, -1)

    def _book_all(self, placements: Iterable[Placement], sign: int) -> None:
        """Each user's in each queue at once."""
        sums: dict[tuple[QueueName, str], dict[str, int]] = {}
        for placement in placements:
            gang = placement.gang
            of_user = sums.setdefault((gang.queue, gang.user), {})
            for name, amount in self._uses(placement).items():
                of_user[name] = of_user.get(name, 0) + amount
        for (queue, user), amounts in sums.items():
            self._ledger.add(queue, user, amounts, sign)
        self._forget()

    def credit(self, placement: Placement) -> None:
        """Exactly undo `charge`."""
        gang = placement.gang
        self._ledger.add(gang.queue, gang.user, self._uses(placement), -1)
        self._forget()

    def _uses(self, placement: Placement) -> Amounts:
        gang = placement.gang.id
        known = self._placed.get(gang)
        if known is not None and known[0] is placement:
            return known[1]
        if len(self._placed) >= MOST_PLACED:
            self._placed.clear()
        uses = placed(placement, self._nodes)
        self._placed[gang] = placement, uses
        return uses

    def used(self, queue: QueueName) -> Amounts:
        """What the queue uses with all below it."""
        return self._ledger.used(queue)

    def used_by(self, queue: QueueName, user: str) -> Amounts:
        """What one user uses in the queue, which is a leaf or limits its users."""
        return self._ledger.used_by(queue, user)

    def refusal(self, gang: Gang) -> Refusal | None:
        """Why its queue or its user may use no more of what it asks for, or None."""
        if gang.queue in self._limits.unlimited:
            return None
        key, roles = (gang.queue, gang.user, id(gang.roles)), gang.roles
        known = self._refusals.get(key)
        if known is None or known[0] is not roles:
            if len(self._refusals) >= MOST_ASKS:
                self._refusals.clear()
            known = self._refusals[key] = roles, self._found_refusal(gang)
        return known[1]

    def _found_refusal(self, gang: Gang) -> Refusal | None:
        limits, leaf = self._limits, gang.queue
        if leaf not in limits.leaves:
            inside = sorted(name for name in limits.leaves if leaf in limits.paths[name])
            return Refusal(HoldReason.NO_QUEUE, leaf, sentences.no_queue(leaf, inside))
        ask = self.ask(gang)
        for name, amount in ask.items():
            if not name.startswith(GPU_OF) and (refused := self._refused(gang, name, amount)):
                return refused
        return self._no_model(gang.sized(_fewest(gang))) if limits.models[leaf] else None

    def refuses(self, gang: Gang, names: Collection[str]) -> bool:
        """Whether `refusal` is for one of these resources; GPU stands for those of all models."""
        for name, amount in self.ask(gang).items():
            if (GPU if name.startswith(GPU_OF) else name) in names and self._refused(gang, name, amount):
                return True
        return (
            GPU in names
            and bool(self._limits.models.get(gang.queue))
            and self._no_model(gang.sized(_fewest(gang))) is not None
        )

    def closed_models(self, gang: Gang) -> frozenset[str]:
        """Models of GPUs, in lower case, of which its queue or its user may not use as many as it could land
        on: those of its roles that have the choice may use none of them."""
        models = self._limits.models.get(gang.queue)
        if not models:
            return frozenset()
        gang = self.bounded(gang)
        return frozenset(
            model
            for model in models
            if (most := self._could_use(gang, model)) and self._refused(gang, GPU_OF + model, most)
        )

    def sizes(self, gang: Gang) -> list[tuple[Gang, frozenset[str]]]:
        """As large as the gang may be, with the `closed_models` for that; for an elastic one that some model
        is closed to, also as large as that one is not: nobody knows which is the larger before it is seen
        what is free."""
        largest = self.bounded(gang)
        found = [(largest, self.closed_models(largest))]
        for model in sorted(found[0][1]) if gang.elastic else ():
            sized = _largest(largest, partial(self._opens, model))
            if model not in (closed := self.closed_models(sized)):
                found.append((sized, closed))
        return found

    def _opens(self, model: str, gang: Gang) -> bool:
        return model not in self.closed_models(gang)

    def bounded(self, gang: Gang) -> Gang:
        """An elastic gang with no more replicas than its queue and its user may use; others as they are."""
        if not gang.elastic or gang.queue in self._limits.unlimited:
            return gang
        return _largest(gang, lambda sized: self.refusal(sized) is None)

    def covered(self, gang: Gang) -> Gang:
        """An elastic gang with no more replicas than the guarantee covers that covers its smallest size, of
        its queue or one above it; as it is where none does. It is no larger than that where it needs
        something that others are sure of alone."""
        lending, ask = self._lending, self.ask(gang)
        lender = lending.lender(gang.queue, ask)[0] if gang.elastic else None
        if lender is None:
            return gang
        alone = not lending.not_lent(lender, ask)
        return _largest(
            gang, lambda sized: alone and lending.covers(lender, gang.queue, asked(sized, self._cards))
        )

    def queue_key(self, queue: QueueName, gang: Gang) -> QueueKey:
        """Smaller comes first. For each level from the top: whether the gang goes beyond the guarantee there;
        if not, how full the guarantee is, if so, the dominant share of what is borrowed already, by weight;
        then the queue's name."""
        roles = gang.roles
        known = self._keys.get((queue, id(roles)))
        if known is not None and known[0] is roles:
            return known[1]
        ask, keys = self.ask(gang), []
        for level in self._limits.path(queue):
            keys.append(self.level_key(level, ask))
            ask = self.ask_above(level, ask)
        found = tuple(reversed(keys))
        if len(self._keys) >= MOST_ASKS:
            self._keys.clear()
        self._keys[queue, id(roles)] = roles, found
        return found

    def ask(self, gang: Gang) -> Amounts:
        """What it asks for, as `level_key` takes it."""
        roles = gang.roles
        known = self._asks.get(id(roles))
        if known is not None and known[0] is roles:
            return known[1]
        if len(self._asks) >= MOST_ASKS:
            self._asks.clear()
        ask = asked(gang, self._cards)
        self._asks[id(roles)] = roles, ask
        return ask

    def user_key(self, queue: QueueName, user: str) -> tuple[float]:
        """Smaller comes first: the share of the cluster that the user uses now in this queue, and on top what
        was used on average in the past, where each half-life ago counts half."""
        key, used = (queue, user), self._ledger.used_by(queue, user)
        known = self._shares.get(key)
        if known is None or known[0] is not used:  # amounts are replaced, never changed
            known = self._shares[key] = used, dominant_share(used, self._cluster)
        return (known[1] + self._history.get(key, 0.0),)

    def kept_elsewhere(self, queue: QueueName, name: str, all_used: int) -> int:
        """What of it queues keep and do not use, other than this one, those below it and those above it.
        all_used: by everybody."""
        ledger, levels = self._ledger, self._limits.path(queue)
        if name not in self._limits.kept_names:
            return 0
        below = ledger.taken(queue, name) - ledger.used(queue).get(name, 0)
        return (
            ledger.taken_in_all(name)
            - all_used
            - below
            - sum(ledger.spare(level, name) for level in levels[1:])
        )

    def ask_above(self, queue: QueueName, ask: Amounts) -> Amounts:
        """What is asked of the level above one that is asked for so much: what the lower one keeps and does
        not use is there."""
        return self._ledger.beyond_spare(queue, ask)

    def borrows(self, running: Running) -> bool:
        """Whether its queue uses more than its guarantee of something that this run uses and that some queue
        is sure of."""
        return self._lending.borrows(running.gang.queue, placed(running.placement, self._nodes))

    def owed(self, gang: Gang) -> frozenset[QueueName]:
        """The queues that it may reclaim from: they use what guarantees of its own queue, or one above it,
        lend (see `Lending`)."""
        return self._lending.owed(gang.queue, self.ask(gang))

    def lender(self, gang: Gang) -> tuple[QueueName | None, Sequence[str]]:
        """The queue that may take back for the gang what others use (see `Lending`), and of which
        resources."""
        return self._lending.lender(gang.queue, self.ask(gang))

    def not_lent(self, gang: Gang) -> frozenset[str]:
        """What it asks for and may take from nobody: others are sure of that, and its lender is not."""
        lender, ask = self.lender(gang)[0], self.ask(gang)
        return frozenset() if lender is None else self._lending.not_lent(lender, ask)

    def debtors(self, lender: QueueName, names: Sequence[str]) -> frozenset[QueueName]:
        """`owed`, for those who know the lender."""
        return self._lending.debtors(lender, names)

    def owes(self, queue: QueueName, gang: Gang) -> bool:
        """Whether the queue is among those that `owed` names: quicker, to ask again for one after something
        was credited."""
        return self._lending.owes(queue, gang.queue, self.ask(gang))

    def lends(self, queue: QueueName) -> bool:
        """Whether it, or one above it, has guarantees left that it may take back, while some queue uses more
        than its own."""
        return self._lending.lends(queue)

    @property
    def _lending(self) -> Lending:
        return Lending(self._limits, self._ledger)

    def level_key(self, queue: QueueName, ask: Amounts) -> tuple[int, float, QueueName]:
        """One level of `queue_key`. What those below it keep counts as used there (see `Lending`), but fills
        nobody's guarantee."""
        counted = self._ledger.counted(queue)
        sure = self._limits.sure.get(queue, NOTHING)
        names = self._limits.within(queue, counted, ask) if sure else None
        if names:
            return 0, shares.filled(self._ledger.used(queue), sure, names), queue
        known = self._limits.tree.queues.get(queue)
        return 1, shares.borrowed_share(counted, sure, self._cluster, known.weight if known else 1.0), queue

    def _refused(self, gang: Gang, name: str, ask: int) -> Refusal | None:
        """Why no more of one resource may be used."""
        limits, ledger, leaf = self._limits, self._ledger, gang.queue
        for queue, caps in limits.user_caps[leaf]:
            limit = caps.get(name)
            if limit is not None and (used := ledger.used_by(queue, gang.user).get(name, 0)) + ask > limit:
                detail = sentences.user_over(gang.user, queue, name, ask=ask, used=used, limit=limit)
                return Refusal(HoldReason.USER_LIMIT, queue, detail)
        for queue, caps in limits.caps[leaf]:
            limit = caps.get(name)
            if limit is not None and (used := ledger.used(queue).get(name, 0)) + ask > limit:
                detail = sentences.over_limit(
                    limits.tree.queues[queue], name, ask=ask, used=used, limit=limit
                )
                return Refusal(HoldReason.QUOTA, queue, detail)
        if name in limits.kept_names and self._cluster and (left := self._open(leaf, name)) < ask:
            keepers = self._keepers(leaf, name)
            detail = sentences.kept_back(leaf, name, ask=ask, left=left, keepers=keepers)
            return Refusal(HoldReason.QUOTA, leaf, detail, kept=True, keepers=tuple(keepers))
        return None

    def _open(self, leaf: QueueName, name: str) -> int:
        """How much more the leaf may use without touching what others keep: at each level what it keeps for
        itself and does not use, and beside that what is open above it and below the limit there (after
        Kueue's hierarchical cohorts)."""
        ledger = self._ledger
        left = self._cluster.get(name, 0) - ledger.taken_in_all(name)
        for level in reversed(self._limits.paths[leaf]):
            limit = self._limits.most[level].get(name)
            if limit is not None:
                left = min(left, limit - ledger.taken(level, name))
            left = max(left, 0) + ledger.spare(level, name)
        return left

    def _keepers(self, leaf: QueueName, name: str) -> list[QueueName]:
        above = self._limits.paths[leaf]
        return sorted(
            queue for queue in self._limits.kept if queue not in above and self._ledger.spare(queue, name) > 0
        )

    def _no_model(self, gang: Gang) -> Refusal | None:
        """Why there is no model of GPU left that some role could use."""
        closed = self.closed_models(gang)
        for role in gang.roles if closed else ():
            models = self._models(role)
            if in_full(role.resources, self._cards) and models and models <= closed:
                model = min(models)
                ask = self._could_use(gang, model, no_choice=len(models) == 1)
                refused = self._refused(gang, GPU_OF + model, ask)
                if refused is not None:
                    return Refusal(refused.reason, refused.queue, refused.detail, closed)
        return None

    def _models(self, role: Role) -> frozenset[str]:
        """Those that it may use."""
        return frozenset(model.lower() for model in role.resources.gpu_models) or self._cards.models

    def _could_use(self, gang: Gang, model: str, *, no_choice: bool = False) -> int:
        """Thousandths of GPUs of the model, if all roles that may use it do; or those alone that may use no
        other."""
        able = [
            role
            for role in gang.roles
            if model in (models := self._models(role)) and not (no_choice and len(models) > 1)
        ]
        return sum(in_full(role.resources, self._cards) * role.replicas for role in able)


def _largest(gang: Gang, allowed: Callable[[Gang], bool]) -> Gang:
    """As many replicas as are allowed, one role after another; the smallest size is."""
    counts = _fewest(gang)
    for index, role in enumerate(gang.roles):
        low, high = counts[index], role.replicas
        while low < high:
            middle = (low + high + 1) // 2
            counts[index] = middle
            low, high = (middle, high) if allowed(gang.sized(counts)) else (low, middle - 1)
        counts[index] = low
    roles = tuple(replace(role, replicas=count) for role, count in zip(gang.roles, counts, strict=True))
    return replace(gang, roles=roles)


def _fewest(gang: Gang) -> list[int]:
    return [role.fewest for role in gang.roles]
