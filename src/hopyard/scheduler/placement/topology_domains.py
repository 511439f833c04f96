"""Distributes replicas over topology domains, so that the rule holds and slices stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.domain.gang import Closeness


@dataclass(frozen=True, slots=True)
class DomainShare:
    """A number of replicas, of consecutive ranks, in one domain."""

    domain: int
    count: int


def assign_to_domains(
    rule: Closeness, slice_size: int, count: int, room: Sequence[int]
) -> list[DomainShare] | None:
    """Which domains hold how many of `count` replicas, in rank order; None where the rule cannot be kept.

    room[d]: how many replicas domain d has room for. Exact: finds a division whenever there is one, in the
    fewest domains.
    """
    if rule is Closeness.SAME:
        fitting = [d for d, have in enumerate(room) if have >= count]
        return [DomainShare(min(fitting, key=lambda d: (room[d], d)), count)] if fitting else None
    slices, last = -(-count // slice_size), (count - 1) % slice_size + 1
    if rule is Closeness.SPREAD:
        return _spread_slices(slice_size, slices, last, room)
    return _fewest_domains(slice_size, slices, last, room, even=rule is Closeness.BALANCED)


def _spread_slices(
    slice_size: int, slice_count: int, last_size: int, room: Sequence[int]
) -> list[DomainShare] | None:
    """Each slice in a domain of its own, the tightest that will do; the last and smallest one may go where no
    whole one fits."""
    order = sorted((d for d, have in enumerate(room) if have >= last_size), key=lambda d: (room[d], d))
    small = order[0] if order and last_size < slice_size else None
    whole = [d for d in order if room[d] >= slice_size and d != small][: slice_count - (small is not None)]
    if len(whole) + (small is not None) < slice_count:
        return None
    return [DomainShare(d, slice_size) for d in whole] + (
        [DomainShare(small, last_size)] if small is not None else []
    )


def _fewest_domains(
    slice_size: int, slice_count: int, last_size: int, room: Sequence[int], *, even: bool
) -> list[DomainShare] | None:
    """The fewest domains; then either the roomiest are filled and the tightest takes the rest, or all take
    alike."""
    order = sorted(
        (d for d, have in enumerate(room) if have >= min(slice_size, last_size)),
        key=lambda d: (-(room[d] // slice_size), d),
    )
    held = 0
    for number, domain in enumerate(order, start=1):
        held += room[domain] // slice_size
        ways = (
            [_slice_assignment(order[:number], None, slice_size, slice_count, room, even=even)]
            if held >= slice_count
            else []
        )
        if even or not ways:
            for small in _domains_for_last_slice(
                slice_size, slice_count, last_size, room, order, number, held
            ):
                chosen = order[:number] if small in order[:number] else [*order[: number - 1], small]
                ways.append(_slice_assignment(chosen, small, slice_size, slice_count, room, even=even))
        if ways:
            counts, with_small = (
                min(ways, key=lambda way: sum(count**2 for count in way[0].values())) if even else ways[0]
            )
            return _build_shares(counts, with_small, slice_size, last_size, room, order)
    return None


def _domains_for_last_slice(
    slice_size: int,
    slice_count: int,
    last_size: int,
    room: Sequence[int],
    order: Sequence[int],
    domain_count: int,
    slices_placed: int,
) -> list[int]:
    """Domains that could take the last, smaller slice beside whole ones, where the first `domain_count`
    domains of the order, or all but one of them and this, hold all others; one for each number of whole
    slices that there is room for."""
    if last_size == slice_size:
        return []
    without = slices_placed - room[order[domain_count - 1]] // slice_size
    found: dict[int, int] = {}
    for place, domain in enumerate(order):
        others = slices_placed if place < domain_count else without + room[domain] // slice_size
        if others >= slice_count - 1 and room[domain] % slice_size >= last_size:
            found.setdefault(room[domain] // slice_size, domain)
    return list(found.values())


# how many slices each domain takes, and which of them takes the small one beside whole ones
SliceAssignment = tuple[dict[int, int], int | None]


def _slice_assignment(
    chosen: Sequence[int],
    last_slice_domain: int | None,
    slice_size: int,
    slice_count: int,
    room: Sequence[int],
    *,
    even: bool,
) -> SliceAssignment:
    limits = {d: room[d] // slice_size + (d == last_slice_domain) for d in chosen}
    return (
        _fill_evenly(limits, slice_count) if even else _fill_greedily(limits, slice_count)
    ), last_slice_domain


def _build_shares(
    counts: dict[int, int],
    last_slice_domain: int | None,
    slice_size: int,
    last_size: int,
    room: Sequence[int],
    order: Sequence[int],
) -> list[DomainShare]:
    """Those that take as many slices may change places; the last slice is the smallest."""
    tightest = {
        d: count
        for d, count in _move_to_tightest(
            counts, order, room, slice_size, fixed_domain=last_slice_domain
        ).items()
        if count
    }
    shares = [DomainShare(d, count * slice_size) for d, count in tightest.items() if d != last_slice_domain]
    shares += (
        [DomainShare(last_slice_domain, tightest[last_slice_domain] * slice_size)]
        if last_slice_domain is not None
        else []
    )
    shares[-1] = DomainShare(shares[-1].domain, shares[-1].count - (slice_size - last_size))
    return shares


def _fill_greedily(limits: dict[int, int], total: int) -> dict[int, int]:
    counts = {}
    for domain, limit in limits.items():
        counts[domain] = min(limit, total)
        total -= counts[domain]
    return counts


def _fill_evenly(limits: dict[int, int], total: int) -> dict[int, int]:
    """As evenly as the limits allow: the smallest first, each taking its part of what is left."""
    counts = {}
    for done, (domain, limit) in enumerate(sorted(limits.items(), key=lambda item: (item[1], item[0]))):
        counts[domain] = min(limit, total // (len(limits) - done))
        total -= counts[domain]
    return counts


def _move_to_tightest(
    counts: dict[int, int],
    order: Sequence[int],
    room: Sequence[int],
    slice_size: int,
    *,
    fixed_domain: int | None,
) -> dict[int, int]:
    """The same counts, each in the tightest domain that takes it, the largest first; `fixed_domain` stays
    where it is."""
    found: dict[int, int] = {}
    free = {d for d in order if d != fixed_domain}
    for domain, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if domain == fixed_domain:
            found[domain] = count
        else:
            best = min((d for d in free if room[d] // slice_size >= count), key=lambda d: (room[d], d))
            free.remove(best)
            found[best] = count
    return found
