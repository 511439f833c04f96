"""Write a table of 100 columns of floats and a label as Parquet files: 400 MB for each million rows.

python examples/search/make_table.py FOLDER [ROWS]
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

COLUMNS, FILES = 100, 4


def main(folder: Path, rows: int) -> None:
    draws = np.random.default_rng(0)
    weights = draws.normal(size=(COLUMNS, 2))
    folder.mkdir(parents=True)
    for number in range(FILES):
        x = draws.normal(size=(rows * (number + 1) // FILES - rows * number // FILES, COLUMNS)).astype(
            np.float32
        )
        label = (np.tanh(x @ weights).sum(1) + draws.normal(scale=0.3, size=len(x)) > 0).astype(np.int64)
        columns = {f"c{at}": x[:, at] for at in range(COLUMNS)}
        parquet.write_table(
            pa.table({**columns, "label": label}), folder / f"part{number}.parquet", row_group_size=50_000
        )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 20_000)
