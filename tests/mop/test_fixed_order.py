"""The fixed order of partitions depends on seed, trial and epoch alone."""

from __future__ import annotations

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.mop.fixed_order import make_fixed_order

PARTITIONS = [PartitionId(index) for index in range(5)]


def test_each_epoch_is_one_latin_square() -> None:
    order = make_fixed_order(PARTITIONS, 7)
    for epoch in range(3):
        rows = [order(TrialId(str(trial)), epoch) for trial in range(5)]
        assert all(sorted(row) == PARTITIONS for row in [*rows, *zip(*rows, strict=True)])
        assert rows[2] == make_fixed_order(PARTITIONS, 7)(TrialId("2"), epoch)
    assert len({tuple(order(TrialId("0"), epoch)) for epoch in range(9)}) > 1
    assert any(
        order(TrialId("0"), epoch) != make_fixed_order(PARTITIONS, 8)(TrialId("0"), epoch)
        for epoch in range(9)
    )
