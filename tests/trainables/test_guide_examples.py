"""The trainables that docs/guides/trainables.md shows: each is loaded, trained, evaluated, and hops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.datasets.partitions.partition import partition_of_arrays
from hopyard.mop_runtime.worker import unit
from hopyard.trainables.config import Config
from hopyard.trainables.load import load
from tests.house.pages import code_blocks

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "trainables.md"
SHOWN = {block.word: block.body for block in code_blocks(PAGE) if block.language == "python" and block.word}
X: dict[str, tuple[int, ...]] = {
    "train.py": (784,),
    "digits.py": (28, 28),
    "transfer.py": (1, 28, 28),
    "mlp.py": (100,),
}
NAMES = {"train.py": "", "digits.py": ":digits", "transfer.py": ":heads", "mlp.py": ":mlp"}


@pytest.mark.parametrize("file", sorted(X))
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_guide_examples_train(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(SHOWN) == set(X)
    if "keras" in SHOWN[file]:
        os.environ.setdefault("KERAS_BACKEND", "torch")
        pytest.importorskip("keras", minversion="3.3")
    folder = tmp_path / file.removesuffix(".py")
    folder.mkdir()
    (folder / f"page_{file}").write_text(SHOWN[file])
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    trainable: Any = load(f"page_{file}{NAMES[file]}", folder)
    draws = np.random.Generator(np.random.PCG64(0))
    part = partition_of_arrays({"x": draws.random((40, *X[file]), dtype=np.float32), "y": np.arange(40) % 10})
    config = Config({"lr": 0.01, "width": 8, "batch_size": 16})
    state = unit.train(trainable, unit.init_state(trainable, config, 0), part, config)
    loaded = unit.load_state(
        trainable, bytearray(unit.encode_state(trainable, state).to_bytes()), config.at(1)
    )
    trained = unit.train(trainable, loaded, part, config.at(1))
    assert trainable.evaluate(trained, part, config)["loss"] > 0
