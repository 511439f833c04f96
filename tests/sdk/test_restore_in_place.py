"""Objects of a script are restored in place, so that every reference sees the contents."""

from __future__ import annotations

import array
import enum
import pickle
from collections import deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.sdk.object_state import restore_state
from tests.sdk.scripts import Replica

_SCRIPT = """
import numpy as np, torch, hopyard as hop
p = hop.params(n=2)
ema, buf, w = torch.zeros(2), np.zeros(2), torch.nn.Parameter(torch.zeros(1))
nested = {"w": [w]}
bound = hop.bind(ema=ema, buf=buf, w=w, nested=nested)
for _ in hop.loop(range(p.n)):
    with torch.no_grad():
        ema += 1; buf += 1; w += 1
assert bound.ema is ema and bound.buf is buf and bound.w is w and nested["w"][0] is w
print(ema.tolist(), buf.tolist(), w.item())
"""


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Slotted:
    __slots__ = ("array", "count")

    def __init__(self, array: Any, count: int) -> None:
        self.array, self.count = array, count


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


Pair = namedtuple("Pair", "left right")


def restore_into(value: Any, saved: Any) -> Any:
    return restore_state("it", value, pickle.loads(pickle.dumps(saved)))


@pytest.mark.torch
def test_resumed_script_continues_with_its_tensors_and_arrays(replica: Replica, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    replica.run(_SCRIPT)
    done = Replica(tmp_path, "again").run(
        _SCRIPT, HOPYARD_RESTORE_DIR=str(replica.folder / "checkpoints" / "2"), HOPYARD_PARAMS='{"n": 5}'
    )
    assert done.stdout.strip() == "[5.0, 5.0] [5.0, 5.0] 5.0"


@pytest.mark.torch
def test_parameter_of_other_shape_is_refused_and_tensor_is_only_returned_by_bind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        SpecError, match=r"does not fit `it`: it is float32\[2\] here, and float32\[3\] in the checkpoint"
    ):
        restore_into(torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3)))
    assert restore_into(torch.zeros(0), torch.ones(2)).tolist() == [1, 1]
    assert "`it` holds float32[2] in the checkpoint and float32[0] here" in capsys.readouterr().err


@pytest.mark.torch
def test_modules_and_optimizer_in_container_stay_linked() -> None:
    torch = pytest.importorskip("torch")

    def made(weight: float) -> dict[str, Any]:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, weight)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=weight)}

    ours = made(1.0)
    model, optimizer = ours["model"], ours["optimizer"]
    assert restore_into(ours, made(5.0)) is ours
    assert (ours["model"], ours["optimizer"]) == (model, optimizer)
    assert (
        model.weight.item() == 5
        and optimizer.param_groups[0]["lr"] == 5
        and optimizer.param_groups[0]["params"][0] is model.weight
    )


@pytest.mark.parametrize(
    "around",
    [
        lambda array: [array],
        lambda array: (array, 1),
        lambda array: Pair(array, 2),
        lambda array: {"a": [1, array]},
        lambda array: deque([array], 3),
        lambda array: Slotted(array, 1),
        lambda array: Plain(array=array),
    ],
)
def test_nested_array_is_filled_in_place(around: Callable[[Any], Any]) -> None:
    array = np.zeros(2)
    value = around(array)
    assert restore_into(value, around(np.ones(2))) is value
    assert array.tolist() == [1, 1]


def test_containers_gain_added_and_lose_removed_entries() -> None:
    dictionary, listed, queue, raw = {"a": 1, "b": 2}, [1, 2, 3], deque([1], 2), bytearray(b"xyz")
    plain = Plain(old=1)
    for value, saved in (
        (dictionary, {"b": 3, "c": 4}),
        (listed, [9]),
        (queue, deque([1, 2], 2)),
        (raw, bytearray(b"a")),
        (plain, Plain(new=2)),
    ):
        assert restore_into(value, saved) is value
    assert (dictionary, listed, queue, raw, vars(plain)) == (
        {"b": 3, "c": 4},
        [9],
        deque([1, 2]),
        b"a",
        {"new": 2},
    )


def test_object_identity_is_retained() -> None:
    one, two = np.zeros(1), np.zeros(1)
    shared, apart = np.full(1, 5.0), np.full(1, 6.0)
    assert [a is one for a in restore_into([one, two], [shared, shared])] == [True, True]
    assert [a.tolist() for a in restore_into([one, one], [shared, apart])] == [[5], [6]]
    ring = Plain()
    ring.me = ring
    saved = Plain(count=1)
    saved.me = saved
    assert restore_into(ring, saved).me is ring and ring.count == 1


@pytest.mark.parametrize(
    ("value", "saved"),
    [(1, 2), ("a", "b"), (Colour.RED, Colour.BLUE), (Path("a"), Path("b")), (None, 1), ((1,), (2, 3))],
)
def test_constants_are_replaced_and_never_mutated(
    value: Any, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert restore_into(value, saved) == saved
    assert Colour.RED.value == 1
    assert capsys.readouterr().err == ""


def test_array_of_numbers_is_restored_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    losses = array.array("d", [0.0, 0.0])
    holder = {"losses": losses}
    assert restore_into(holder, {"losses": array.array("d", [1.0, 2.0, 3.0])})["losses"] is losses
    assert losses.tolist() == [1.0, 2.0, 3.0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("value", "saved"),
    [(iter([1, 2]), iter([3])), (array.array("d"), array.array("f", [1.0])), ([1], {"a": 1})],
)
def test_a_changed_object_that_cannot_be_filled_is_named(
    value: Any, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = type(saved).__name__
    assert restore_state(f"odd_{name}", value, saved) is saved
    assert f"`odd_{name}` holds `{name}`, which cannot be restored in place" in capsys.readouterr().err


def test_unfillable_array_is_only_returned_by_bind(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    assert restore_into(frozen, np.ones(2)).tolist() == [1, 1] and frozen.tolist() == [0, 0]
    assert restore_state("grown", np.zeros(0), np.ones(2)).tolist() == [1, 1]
    assert "`grown` holds float64[2] in the checkpoint and float64[0] here" in capsys.readouterr().err
