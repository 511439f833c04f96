"""Checkpoints of another user's run: tensors, arrays and plain values are restored, and nothing of it
runs."""

from __future__ import annotations

import collections
import decimal
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.sdk import checkpoints, object_state
from hopyard.sdk.checkpoints import LoopPosition
from tests.sdk.scripts import Replica


class Hostile:
    """Its unpickling makes a folder."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._mark,)


PLAIN = {
    "numbers": [1, 2.5, True, None, 3 + 4j],
    "array": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.float64(2.5),
    "texts": {"a", "b"},
    "counts": collections.Counter("abca"),
    "order": collections.OrderedDict(x=(1, 2)),
    "exact": decimal.Decimal("1.5"),
    "bytes": b"\x00\xff",
}


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_of_other_users_checkpoint_are_read(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(PLAIN, protocol))
    result = object_state.read_state(str(tmp_path / "x.pkl"), is_untrusted=True)
    assert result.keys() == PLAIN.keys()
    assert np.array_equal(result.pop("array"), PLAIN["array"])
    assert result == {key: value for key, value in PLAIN.items() if key != "array"}


@pytest.mark.parametrize("of", ["os.mkdir", "builtins.eval", "numpy.load"])
def test_other_users_checkpoint_creates_no_objects(tmp_path: Path, of: str) -> None:
    module, name = of.rsplit(".", 1)
    (tmp_path / "x.pkl").write_bytes(f"c{module}\n{name}\n(S'{tmp_path}/mark'\ntR.".encode())
    with pytest.raises(SpecError, match=of.replace(".", r"\.")) as error:
        object_state.read_state(str(tmp_path / "x.pkl"), is_untrusted=True)
    assert "trust=True" in error.value.hints[0] and "--trust" in error.value.hints[0]
    assert not (tmp_path / "mark").exists()


def test_own_objects_are_read(tmp_path: Path) -> None:
    folder = checkpoints.write_checkpoint(
        str(tmp_path),
        1,
        {"mine": Hostile(tmp_path / "mark")},
        [LoopPosition("epoch", 0, 1, rng_state={"python": (3, (1,), None)})],
        {},
    )
    with pytest.raises(SpecError, match=r"`mine` of the checkpoint of step 1: it holds a `(posix|os).mkdir`"):
        checkpoints.read_checkpoint(folder, is_untrusted=True).state_of("mine")
    assert not (tmp_path / "mark").exists()
    assert checkpoints.read_checkpoint(folder).state_of("mine") is None
    assert (tmp_path / "mark").is_dir()


@pytest.mark.torch
def test_tensors_are_read_and_refused_file_has_no_fallback(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = {"w": torch.arange(4.0), "p": torch.nn.Parameter(torch.ones(2))}
    torch.save(tensors, tmp_path / "good.pt")
    (tmp_path / "good.pkl").write_bytes(pickle.dumps(tensors))
    for name in ("good.pt", "good.pkl"):
        result = object_state.read_state(str(tmp_path / name), is_untrusted=True)
        assert torch.equal(result["w"], tensors["w"]) and torch.equal(result["p"], tensors["p"])
    torch.save({"w": Hostile(tmp_path / "mark")}, tmp_path / "bad.pt")
    with pytest.raises(SpecError, match="mkdir"):
        object_state.read_state(str(tmp_path / "bad.pt"), is_untrusted=True)
    storage = pickle.dumps(torch.ones(2).untyped_storage())
    assert b"_load_from_bytes" in storage
    assert not (tmp_path / "mark").exists()


SCRIPT = """
import hopyard as hop
class Plan:
    steps = 1
bound = hop.bind(plan=Plan(), weights=[0])
for epoch in hop.loop(range(int(hop.params(epochs=1).epochs))):
    bound.weights[0] += 1
print(bound.weights, bound.plan.steps)
"""


def test_script_restores_own_objects_and_only_plain_values_of_others(tmp_path: Path) -> None:
    first = Replica(tmp_path, "0")
    first.run(SCRIPT)
    restored = {
        "HOPYARD_RESTORE_DIR": str(first.folder / "checkpoints" / "1"),
        "HOPYARD_RESTORE_STEP": "1",
        "HOPYARD_PARAMS": '{"epochs": 2}',
    }
    assert "[2] 1" in Replica(tmp_path, "1").run(SCRIPT, **restored).stdout
    refused = Replica(tmp_path, "2").run(SCRIPT, **restored, HOPYARD_RESTORE_FOREIGN="1", ok=False)
    assert (
        refused.returncode
        and "`__main__.Plan`, which is not a tensor, array or plain value" in refused.stderr
    )
    plain = SCRIPT.replace("plan=Plan(), ", "").replace(", bound.plan.steps", "")
    second = Replica(tmp_path, "3")
    second.run(plain)
    restored["HOPYARD_RESTORE_DIR"] = str(second.folder / "checkpoints" / "1")
    assert "[2]" in Replica(tmp_path, "4").run(plain, **restored, HOPYARD_RESTORE_FOREIGN="1").stdout
