"""How replicas are divided over domains, held against every division there is."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.gang import Closeness
from hopyard.scheduler.placement.topology_domains import assign_to_domains

rooms = st.lists(st.integers(0, 7), min_size=1, max_size=4)
many = settings(max_examples=600, deadline=None)


def divisions(slices: list[int], room: list[int], used: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yields every assignment of the slices (numbers of replicas) to domains with enough room."""
    if not slices:
        yield used
        return
    for domain, have in enumerate(room):
        if have >= slices[0]:
            yield from divisions(
                slices[1:], [*room[:domain], have - slices[0], *room[domain + 1 :]], (*used, domain)
            )


def evenness(division: tuple[int, ...]) -> tuple[int, list[int]]:
    counts = sorted(division.count(domain) for domain in set(division))
    return len(counts), [count**2 for count in counts]


@many
@given(st.sampled_from(Closeness), st.integers(1, 3), st.integers(1, 7), rooms)
def test_best_domain_assignment_is_found_if_one_exists(
    rule: Closeness, slice: int, count: int, room: list[int]
) -> None:
    slices = [slice] * (count // slice) + ([count % slice] if count % slice else [])
    every = list(divisions(slices if rule is not Closeness.SAME else [count], room))
    if rule is Closeness.SPREAD:
        every = [division for division in every if len(set(division)) == len(division)]
    result = assign_to_domains(rule, slice, count, room)
    if result is None:
        assert not every
        return
    assert sum(share.count for share in result) == count
    assert len({share.domain for share in result}) == len(result)
    assert all(0 < share.count <= room[share.domain] for share in result)
    if rule is Closeness.SAME:
        assert len(result) == 1
        return
    ends = [sum(share.count for share in result[: i + 1]) for i in range(len(result))]
    assert all(end % slice == 0 for end in ends[:-1]), "only the last slice may be smaller"
    if rule is Closeness.SPREAD:
        assert len(result) == len(slices)
        return
    assert len(result) == min(len(set(division)) for division in every)
    if rule is Closeness.BALANCED:
        mine = sorted((-(-share.count // slice)) ** 2 for share in result)
        assert sum(mine) == min(
            sum(evenness(division)[1]) for division in every if len(set(division)) == len(result)
        )
