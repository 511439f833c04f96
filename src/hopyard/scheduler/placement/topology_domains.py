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
    """Returns the domains and their numbers of replicas, `count` in total, in rank order. None if the rule
    cannot be obeyed.

    room[d]: the number of replicas that fit in domain d. Exact: finds an assignment if one exists, in the
    fewest domains.
    """
    if rule is Closeness.SAME:
        feasible = [domain for domain, capacity in enumerate(room) if capacity >= count]
        return (
            [DomainShare(min(feasible, key=lambda domain: (room[domain], domain)), count)]
            if feasible
            else None
        )
    slice_count, last_size = -(-count // slice_size), (count - 1) % slice_size + 1
    if rule is Closeness.SPREAD:
        return _spread_slices(slice_size, slice_count, last_size, room)
    return _fewest_domains(slice_size, slice_count, last_size, room, even=rule is Closeness.BALANCED)


def _spread_slices(
    slice_size: int, slice_count: int, last_size: int, room: Sequence[int]
) -> list[DomainShare] | None:
    """Puts each slice in its own domain, the one with the least sufficient capacity. The last, smaller slice
    may use a domain where no whole slice fits."""
    order = sorted(
        (domain for domain, capacity in enumerate(room) if capacity >= last_size),
        key=lambda domain: (room[domain], domain),
    )
    last_domain = order[0] if order and last_size < slice_size else None
    whole_domains = [domain for domain in order if room[domain] >= slice_size and domain != last_domain][
        : slice_count - (last_domain is not None)
    ]
    if len(whole_domains) + (last_domain is not None) < slice_count:
        return None
    return [DomainShare(domain, slice_size) for domain in whole_domains] + (
        [DomainShare(last_domain, last_size)] if last_domain is not None else []
    )


def _fewest_domains(
    slice_size: int, slice_count: int, last_size: int, room: Sequence[int], *, even: bool
) -> list[DomainShare] | None:
    """Uses the fewest domains. Fills the largest domains first and puts the rest in the smallest that
    suffices; with `even`, distributes slices evenly."""
    order = sorted(
        (domain for domain, capacity in enumerate(room) if capacity >= min(slice_size, last_size)),
        key=lambda domain: (-(room[domain] // slice_size), domain),
    )
    slices_placed = 0
    for domain_count, domain in enumerate(order, start=1):
        slices_placed += room[domain] // slice_size
        assignments = (
            [_slice_assignment(order[:domain_count], None, slice_size, slice_count, room, even=even)]
            if slices_placed >= slice_count
            else []
        )
        if even or not assignments:
            for last_slice_domain in _domains_for_last_slice(
                slice_size, slice_count, last_size, room, order, domain_count, slices_placed
            ):
                chosen = (
                    order[:domain_count]
                    if last_slice_domain in order[:domain_count]
                    else [*order[: domain_count - 1], last_slice_domain]
                )
                assignments.append(
                    _slice_assignment(chosen, last_slice_domain, slice_size, slice_count, room, even=even)
                )
        if assignments:
            counts, chosen_last_domain = (
                min(assignments, key=lambda assignment: sum(count**2 for count in assignment[0].values()))
                if even
                else assignments[0]
            )
            return _build_shares(counts, chosen_last_domain, slice_size, last_size, room, order)
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
    """Returns domains that can take the last, smaller slice beside whole slices. The other slices are in the
    first `domain_count` domains of the order, or in this domain and all but the last of those. Returns one
    domain for each number of whole slices that fit."""
    if last_size == slice_size:
        return []
    slices_without_last = slices_placed - room[order[domain_count - 1]] // slice_size
    domain_by_slices: dict[int, int] = {}
    for position, domain in enumerate(order):
        whole_slices = (
            slices_placed if position < domain_count else slices_without_last + room[domain] // slice_size
        )
        if whole_slices >= slice_count - 1 and room[domain] % slice_size >= last_size:
            domain_by_slices.setdefault(room[domain] // slice_size, domain)
    return list(domain_by_slices.values())


# the number of slices of each domain, and the domain of the last, smaller slice if it is beside whole slices
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
    limits = {domain: room[domain] // slice_size + (domain == last_slice_domain) for domain in chosen}
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
    """Returns the shares. Domains with equal numbers of slices may be exchanged; the last slice is the
    smallest."""
    counts_by_domain = {
        domain: count
        for domain, count in _move_to_tightest(
            counts, order, room, slice_size, fixed_domain=last_slice_domain
        ).items()
        if count
    }
    shares = [
        DomainShare(domain, count * slice_size)
        for domain, count in counts_by_domain.items()
        if domain != last_slice_domain
    ]
    shares += (
        [DomainShare(last_slice_domain, counts_by_domain[last_slice_domain] * slice_size)]
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
    """Fills as evenly as the limits allow: the smallest limit first, each taking an equal part of the
    rest."""
    counts = {}
    for index, (domain, limit) in enumerate(sorted(limits.items(), key=lambda item: (item[1], item[0]))):
        counts[domain] = min(limit, total // (len(limits) - index))
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
    """Moves each count to the smallest domain that can take it, the largest count first. `fixed_domain` keeps
    its count."""
    moved: dict[int, int] = {}
    available = {candidate for candidate in order if candidate != fixed_domain}
    for domain, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if domain == fixed_domain:
            moved[domain] = count
        else:
            best = min(
                (candidate for candidate in available if room[candidate] // slice_size >= count),
                key=lambda candidate: (room[candidate], candidate),
            )
            available.remove(best)
            moved[best] = count
    return moved
