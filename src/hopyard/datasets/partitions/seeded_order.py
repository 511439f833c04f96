"""Orders made of seeds: the same on every machine and with every version of NumPy.

Only the raw stream of Philox is used (NEP 19 keeps bit generators' streams; it lets what stands on them
change), and a stable sort.
"""

from __future__ import annotations

from hashlib import blake2b

from hopyard.datasets.partitions.arrays import Array, np


def derive_seed(*parts: str | int) -> int:
    """A seed of 63 bits made of these, in their order: `seed_of(seed, "shuffle", epoch, partition)`."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shuffle_rows(rows: int, seed: int) -> Array:
    """0 … rows - 1 in an order that the seed decides."""
    draws = np.random.Philox(key=derive_seed(seed, "order")).random_raw(rows)
    return np.argsort(draws, kind="stable")


def epoch_order(rows: int, seed: int, blocks: Array | None, window_rows: int) -> Array:
    """The positions 0 … rows - 1 shuffled for one pass.

    blocks: (rows,) the block of the file in which each row lies, where rows can only be read a block at a
    time: then blocks are shuffled, taken together until they hold `window_rows`, and shuffled within such a
    window, so that a pass reads each block once. None: any row is as near as any other, and all are shuffled
    at once.
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
    """The windows of such a pass: the blocks of each, and their positions in shuffled order."""
    present, counts = np.unique(blocks, return_counts=True)
    by_block = np.argsort(blocks, kind="stable")
    ends = np.cumsum(counts)
    taken: list[tuple[list[int], Array]] = []
    together: list[int] = []
    held = 0
    turn = shuffle_rows(len(present), derive_seed(seed, "blocks"))
    for nth, at in enumerate(turn):
        together.append(int(at))
        held += int(counts[at])
        if held >= window_rows or nth == len(turn) - 1:
            positions = np.concatenate([by_block[ends[b] - counts[b] : ends[b]] for b in together])
            taken.append(
                (
                    [int(present[b]) for b in together],
                    positions[shuffle_rows(len(positions), derive_seed(seed, "window", len(taken)))],
                )
            )
            together, held = [], 0
    return taken


def batch_bounds(
    rows: int, size: int, *, drop_last: bool = False, steps: int | None = None
) -> list[tuple[int, int]]:
    """From where to where each batch goes. steps: into exactly so many, of sizes that differ by one at
    most."""
    if steps is not None:
        return [(rows * step // steps, rows * (step + 1) // steps) for step in range(steps)]
    return [(at, min(at + size, rows)) for at in range(0, rows, size) if not drop_last or at + size <= rows]
