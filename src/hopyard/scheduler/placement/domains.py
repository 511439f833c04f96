"""How many replicas go into which domain of a level of topology, so that the rule holds and slices stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.domain.gang import Closeness


@dataclass(frozen=True, slots=True)
class Share:
    """So many replicas, of consecutive ranks, in one domain."""

    domain: int
    count: int


def divide(rule: Closeness, slice: int, count: int, room: Sequence[int]) -> list[Share] | None:
    """Which domains hold how many of `count` replicas, in rank order; None where the rule cannot be kept.

    room[d]: how many replicas domain d has room for. Exact: finds a division whenever there is one, in the fewest domains.
    """
    if rule is Closeness.SAME:
        fitting = [d for d, have in enumerate(room) if have >= count]
        return [Share(min(fitting, key=lambda d: (room[d], d)), count)] if fitting else None
    slices, last = -(-count // slice), (count - 1) % slice + 1
    if rule is Closeness.SPREAD:
        return _apart(slice, slices, last, room)
    return _few(slice, slices, last, room, even=rule is Closeness.BALANCED)


def _apart(slice: int, slices: int, last: int, room: Sequence[int]) -> list[Share] | None:
    """Each slice in a domain of its own, the tightest that will do; the last and smallest one may go where no whole one fits."""
    order = sorted((d for d, have in enumerate(room) if have >= last), key=lambda d: (room[d], d))
    small = order[0] if order and last < slice else None
    whole = [d for d in order if room[d] >= slice and d != small][: slices - (small is not None)]
    if len(whole) + (small is not None) < slices:
        return None
    return [Share(d, slice) for d in whole] + ([Share(small, last)] if small is not None else [])


def _few(slice: int, slices: int, last: int, room: Sequence[int], *, even: bool) -> list[Share] | None:
    """The fewest domains; then either the roomiest are filled and the tightest takes the rest, or all take alike."""
    order = sorted((d for d, have in enumerate(room) if have >= min(slice, last)), key=lambda d: (-(room[d] // slice), d))
    held = 0
    for number, domain in enumerate(order, start=1):
        held += room[domain] // slice
        chosen = order[:number]
        small = None
        if held < slices:
            small = _for_small(slice, slices, last, room, order, number, held)
            if small is None:
                continue
            if small not in chosen:
                chosen = [*order[: number - 1], small]
        return _fill(slice, slices, last, room, order, chosen, small, even=even)
    return None


def _for_small(
    slice: int, slices: int, last: int, room: Sequence[int], order: Sequence[int], number: int, held: int
) -> int | None:
    """The domain that takes the last, smaller slice beside whole ones, where the first `number` domains of the order, or all
    but one of them and this, hold all others."""
    if last == slice:
        return None
    without = held - room[order[number - 1]] // slice
    for place, domain in enumerate(order):
        others = held if place < number else without + room[domain] // slice
        if others >= slices - 1 and room[domain] % slice >= last:
            return domain
    return None


def _fill(
    slice: int,
    slices: int,
    last: int,
    room: Sequence[int],
    order: Sequence[int],
    chosen: Sequence[int],
    small: int | None,
    *,
    even: bool,
) -> list[Share]:
    whole = slices if small is None else slices - 1
    limits = {d: room[d] // slice for d in chosen}
    counts = _evenly(limits, whole) if even else _greedily(limits, whole)
    counts = {d: n for d, n in _tightest(counts, order, room, slice, keep=small).items() if n or d == small}
    shares = [Share(d, n * slice) for d, n in counts.items() if d != small]
    if small is not None:
        shares.append(Share(small, counts.get(small, 0) * slice + last))
    elif last < slice:
        shares[-1] = Share(shares[-1].domain, shares[-1].count - (slice - last))
    return shares


def _greedily(limits: dict[int, int], whole: int) -> dict[int, int]:
    counts = {}
    for domain, limit in limits.items():
        counts[domain] = min(limit, whole)
        whole -= counts[domain]
    return counts


def _evenly(limits: dict[int, int], whole: int) -> dict[int, int]:
    """As evenly as the limits allow: the smallest first, each taking its part of what is left."""
    counts = {}
    for done, (domain, limit) in enumerate(sorted(limits.items(), key=lambda item: (item[1], item[0]))):
        counts[domain] = min(limit, whole // (len(limits) - done))
        whole -= counts[domain]
    return counts


def _tightest(
    counts: dict[int, int], order: Sequence[int], room: Sequence[int], slice: int, *, keep: int | None
) -> dict[int, int]:
    """The same counts, each in the tightest domain that takes it, the largest first; `keep` stays where it is."""
    found: dict[int, int] = {}
    free = {d for d in order if d != keep}
    for domain, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if domain == keep:
            found[domain] = count
        else:
            best = min((d for d in free if room[d] // slice >= count), key=lambda d: (room[d], d))
            free.remove(best)
            found[best] = count
    return found
