"""The checks of a replica before its script starts: which are made, and what a failure amounts to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hopyard.backports import StrEnum, dataclass
from hopyard.domain.ids import AttemptId, NodeId
from hopyard.domain.launcher import Launcher

PREFLIGHT_LIMIT_S = 30.0  # for the checks between the replicas of a gang
CORDON_WINDOW = timedelta(hours=6)  # failures within this time count together
CORDON_FAILURES = 2  # attempts
# in larger gangs each replica is checked with some others only, see `checked_peers`
MAX_FULL_MESH = 16


class Preflight(StrEnum):
    """Which checks are made."""

    OFF = "off"
    NODE = "node"  # of each node for itself
    PAIRS = "pairs"  # the same, and the connections between the replicas of a gang
    FULL = "full"  # the same, and an all-reduce with every launcher


class Check(StrEnum):
    DISK = "disk"
    CLOCK = "clock"
    CACHE = "cache"
    GPU = "gpu"
    ENVIRONMENT = "environment"
    DATASET = "dataset"
    PAIRS = "pairs"
    SKEW = "clock-skew"
    ALL_REDUCE = "all-reduce"


# A full disk makes its node unschedulable as long as it is full, see `config.node_checks`.
UNCORDONED_CHECKS = frozenset({Check.DISK})


@dataclass(frozen=True, slots=True)
class PreflightLaunch:
    """What a replica needs for its checks.

    secret: known to the replicas of the attempt; it authenticates the connections between them. key: of this
    replica alone; it authenticates the report of a failure. Both are removed from the spec before the script
    starts. ranks: of the replicas that are checked with each other. Without them no connection is checked.
    """

    checks: Preflight = Preflight.NODE
    secret: str = ""
    key: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """A failed check. found: what was found, as a sentence without an end. hint: what to do about it.
    blames_node: the node of the replica is to blame."""

    check: Check
    found: str
    hint: str = ""
    blames_node: bool = False

    def reason(self) -> str:
        """Returns the sentence for users."""
        hint = f"; hint: {self.hint}" if self.hint else ""
        return f"preflight check `{self.check}` failed: {self.found}{hint}"


def has_all_reduce(checks: Preflight, launcher: Launcher) -> bool:
    """Returns whether the replicas of a gang add up numbers before their scripts do."""
    return checks is Preflight.FULL or (checks is Preflight.PAIRS and launcher is not Launcher.NONE)


def checked_peers(rank: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """Returns the replicas that are checked with this one: all others of a gang of at most `MAX_FULL_MESH`
    replicas. In a larger gang they are at the distances 1/2, 1/4, 1/8 … of the size around the ring of all
    ranks, in both directions, so that the number of connections grows with the logarithm of the size."""
    members = sorted(ranks)
    size = len(members)
    if size <= MAX_FULL_MESH:
        return tuple(other for other in members if other != rank)
    own = members.index(rank)
    distances = [size >> power for power in range(1, size.bit_length())]
    found = {members[(own + sign * distance) % size] for distance in distances for sign in (1, -1)}
    return tuple(sorted(found - {rank}))


def all_reduce_turns(size: int) -> list[tuple[int, bool]]:
    """Returns the turns in which all replicas of a gang add up numbers: each a distance around the ring of
    all ranks, and whether the sum starts again from the own numbers.

    In each turn, a replica sends its sum to the replica at this distance after it, and receives the sum of
    the replica as far before it. It adds this to its own sum, or to its own numbers alone. The sums of n
    replicas thus become sums of 2n, or of n + 1. There are at most 2 log2(size) turns, and all distances are
    among those of `checked_peers`.
    """
    turns, summed = list[tuple[int, bool]](), 1
    for bit in f"{size:b}"[1:]:
        turns.append((summed, False))
        summed *= 2
        if bit == "1":
            turns.append((1, True))
            summed += 1
    return turns


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A failed check for which a node is to blame."""

    node: NodeId
    attempt: AttemptId
    check: Check
    found: str
    at: datetime


def cordon_reason(failures: Sequence[NodeFailure], node: NodeId, *, now: datetime) -> str:
    """Returns why a node is cordoned; "" if it is not.

    A node is cordoned when its checks failed in two attempts within six hours. Replicas of one attempt count
    once: they share the cause.
    """
    recent: dict[AttemptId, NodeFailure] = {}
    for failure in failures:
        if (
            failure.node == node
            and failure.check not in UNCORDONED_CHECKS
            and timedelta() <= now - failure.at <= CORDON_WINDOW
        ):
            recent[failure.attempt] = failure
    if len(recent) < CORDON_FAILURES:
        return ""
    latest = max(recent.values(), key=lambda failure: failure.at)
    hours = CORDON_WINDOW // timedelta(hours=1)
    failed = f"preflight failed in {len(recent)} attempts within {hours} hours"
    return f"{failed}, last `{latest.check}`: {latest.found}"


def recent_failures(failures: Sequence[NodeFailure], *, now: datetime) -> list[NodeFailure]:
    """Returns the failures that still count."""
    return [failure for failure in failures if now - failure.at <= CORDON_WINDOW]
