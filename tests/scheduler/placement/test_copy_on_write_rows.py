"""Tables that share rows behave as if each had its own copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hopyard.scheduler.placement.copy_on_write_rows import MIN_SPARE_ROWS, SPARE_ROW_FRACTION, CopyOnWriteRows

WIDTH = 3
Step = tuple[str, int, list[int], int]


def steps(count: int) -> st.SearchStrategy[list[Step]]:
    rows = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True)
    return st.lists(
        st.tuples(
            st.sampled_from(["copy", "put", "one", "change"]), st.integers(0, 9), rows, st.integers(-99, 99)
        )
    )


def run_steps(count: int, steps_: Sequence[Step]) -> None:
    plain = [np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)]
    tables = [CopyOnWriteRows(plain[0])]
    for what, which, rows, value in steps_:
        table, mine = tables[which % len(tables)], plain[which % len(tables)]
        values = np.full((len(rows), WIDTH), value, np.float32)
        if what == "copy":
            tables.append(table.copy())
            plain.append(mine.copy())
        elif what == "put":
            table.write(np.array(rows), values)
            mine[rows] = values
        elif what == "one":
            table.write_one(rows[0], values[0])
            mine[rows[0]] = values[0]
        else:
            table.add_to(rows[0], values[0])
            mine[rows[0]] += values[0]
        everything = np.arange(count)
        for shared, alone in zip(tables, plain, strict=True):
            np.testing.assert_array_equal(shared.read(everything), alone)


@given(st.data())
def test_each_copy_has_only_its_own_writes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    run_steps(count, data.draw(steps(count)))


def test_table_with_more_changes_than_spare_rows_is_rebuilt() -> None:
    count = 8
    one_by_one: list[Step] = [
        ("one", 0, [n % count], n) if n % 2 else ("change", 0, [n % count], n)
        for n in range(2 * MIN_SPARE_ROWS)
    ]
    copied: list[Step] = [step for one in one_by_one for step in (("copy", 0, [0], 0), one)]
    run_steps(count, copied[: 4 * (MIN_SPARE_ROWS + count // SPARE_ROW_FRACTION)])
    run_steps(
        count,
        [
            step
            for n in range(MIN_SPARE_ROWS)
            for step in (("copy", 0, [0], 0), ("put", 0, list(range(count)), n))
        ],
    )
