"""Orders derived from seeds: equal on every machine and with every version of NumPy.

Uses only the raw stream of Philox and a stable sort. NEP 19 guarantees the streams of bit generators, but not
the functions built on them.
"""

from __future__ import annotations

from hashlib import blake2b

from hopyard.datasets.partitions.arrays import Array, np


def derive_seed(*parts: str | int) -> int:
    """Returns a seed of 63 bits derived from these parts: `derive_seed(seed, "shuffle", epoch,
    partition)`."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shuffle_rows(rows: int, seed: int) -> Array:
    """Returns 0 … rows - 1 in an order that depends on the seed."""
    draws = np.random.Philox(key=derive_seed(seed, "order")).random_raw(rows)
    return np.argsort(draws, kind="stable")


def epoch_order(rows: int, seed: int, blocks: Array | None, window_rows: int) -> Array:
    """Returns the positions 0 … rows - 1 shuffled for one pass.

    blocks: (rows,) the storage block of each row, if rows can only be read a block at a time. Then blocks are
    shuffled and combined until they hold `window_rows`; rows are shuffled within such a window. So a pass
    reads each block once. None: rows can be read independently, and all are shuffled at once.
    """
    if blocks is None:
        return shuffle_rows(rows, seed)
    return np.concatenate(
        [
            np.empty(0, dtype=np.int64),
            *(positions for _, positions in shuffle_windows(seed, blocks, window_rows)),
        ]
    )


def shuffle_windows(seed: int, blocks: Array, window_rows: int) -> list[tuple[list[int], Array]]:
    """Returns the windows of such a pass: the blocks of each window, and their positions in shuffled
    order."""
    present, counts = np.unique(blocks, return_counts=True)
    by_block = np.argsort(blocks, kind="stable")
    ends = np.cumsum(counts)
    windows: list[tuple[list[int], Array]] = []
    window: list[int] = []
    window_size = 0
    block_order = shuffle_rows(len(present), derive_seed(seed, "blocks"))
    for index, block in enumerate(block_order):
        window.append(int(block))
        window_size += int(counts[block])
        if window_size >= window_rows or index == len(block_order) - 1:
            positions = np.concatenate(
                [by_block[ends[number] - counts[number] : ends[number]] for number in window]
            )
            windows.append(
                (
                    [int(present[number]) for number in window],
                    positions[shuffle_rows(len(positions), derive_seed(seed, "window", len(windows)))],
                )
            )
            window, window_size = [], 0
    return windows


def batch_bounds(
    rows: int, size: int, *, drop_last: bool = False, steps: int | None = None
) -> list[tuple[int, int]]:
    """Returns the start and end of each batch. steps: makes exactly this number of batches, with sizes that
    differ by at most one."""
    if steps is not None:
        return [(rows * step // steps, rows * (step + 1) // steps) for step in range(steps)]
    return [
        (start, min(start + size, rows))
        for start in range(0, rows, size)
        if not drop_last or start + size <= rows
    ]
