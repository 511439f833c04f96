"""How many replicas go into which domain of a level of topology, so that the rule holds and slices stay
whole."""

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

    room[d]: how many replicas domain d has room for. Exact: finds a division whenever there is one, in the
    fewest domains.
    """
    if rule is Closeness.SAME:
        fitting = [d for d, have in enumerate(room) if have >= count]
        return [Share(min(fitting, key=lambda d: (room[d], d)), count)] if fitting else None
    slices, last = -(-count // slice), (count - 1) % slice + 1
    if rule is Closeness.SPREAD:
        return _apart(slice, slices, last, room)
    return _few(slice, slices, last, room, even=rule is Closeness.BALANCED)


def _apart(slice: int, slices: int, last: int, room: Sequence[int]) -> list[Share] | None:
    """Each slice in a domain of its own, the tightest that will do; the last and smallest one may go where no
    whole one fits."""
    order = sorted((d for d, have in enumerate(room) if have >= last), key=lambda d: (room[d], d))
    small = order[0] if order and last < slice else None
    whole = [d for d in order if room[d] >= slice and d != small][: slices - (small is not None)]
    if len(whole) + (small is not None) < slices:
        return None
    return [Share(d, slice) for d in whole] + ([Share(small, last)] if small is not None else [])


def _few(slice: int, slices: int, last: int, room: Sequence[int], *, even: bool) -> list[Share] | None:
    """The fewest domains; then either the roomiest are filled and the tightest takes the rest, or all take
    alike."""
    order = sorted(
        (d for d, have in enumerate(room) if have >= min(slice, last)), key=lambda d: (-(room[d] // slice), d)
    )
    held = 0
    for number, domain in enumerate(order, start=1):
        held += room[domain] // slice
        ways = [_way(order[:number], None, slice, slices, room, even=even)] if held >= slices else []
        if even or not ways:
            for small in _for_small(slice, slices, last, room, order, number, held):
                chosen = order[:number] if small in order[:number] else [*order[: number - 1], small]
                ways.append(_way(chosen, small, slice, slices, room, even=even))
        if ways:
            counts, with_small = (
                min(ways, key=lambda way: sum(count**2 for count in way[0].values())) if even else ways[0]
            )
            return _fill(counts, with_small, slice, last, room, order)
    return None


def _for_small(
    slice: int, slices: int, last: int, room: Sequence[int], order: Sequence[int], number: int, held: int
) -> list[int]:
    """Domains that could take the last, smaller slice beside whole ones, where the first `number` domains of
    the order, or all but one of them and this, hold all others; one for each number of whole slices that
    there is room for."""
    if last == slice:
        return []
    without = held - room[order[number - 1]] // slice
    found: dict[int, int] = {}
    for place, domain in enumerate(order):
        others = held if place < number else without + room[domain] // slice
        if others >= slices - 1 and room[domain] % slice >= last:
            found.setdefault(room[domain] // slice, domain)
    return list(found.values())


Way = tuple[
    dict[int, int], int | None
]  # how many slices each domain takes, and which of them takes the small one beside whole ones


def _way(
    chosen: Sequence[int], small: int | None, slice: int, slices: int, room: Sequence[int], *, even: bool
) -> Way:
    limits = {d: room[d] // slice + (d == small) for d in chosen}
    return (_evenly(limits, slices) if even else _greedily(limits, slices)), small


def _fill(
    counts: dict[int, int],
    small: int | None,
    slice: int,
    last: int,
    room: Sequence[int],
    order: Sequence[int],
) -> list[Share]:
    """Those that take as many slices may change places; the last slice is the smallest."""
    tightest = {d: count for d, count in _tightest(counts, order, room, slice, keep=small).items() if count}
    shares = [Share(d, count * slice) for d, count in tightest.items() if d != small]
    shares += [Share(small, tightest[small] * slice)] if small is not None else []
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
    """The same counts, each in the tightest domain that takes it, the largest first; `keep` stays where it
    is."""
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
