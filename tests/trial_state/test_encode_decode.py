"""Encoded states round-trip, and equal states are equal bytes."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from hopyard.errors import IntegrityError, SpecError
from hopyard.trainables.config import Config
from hopyard.trial_state import state_format
from hopyard.trial_state.decode import decode
from hopyard.trial_state.digest import digest
from hopyard.trial_state.encode import encode

torch = pytest.importorskip("torch")


def round_trip(value: Any) -> Any:
    """Returns the encoded and decoded value. Encoding it again must give the same bytes."""
    data = encode(value).to_bytes()
    back = decode(bytearray(data))
    assert encode(back).to_bytes() == data
    return back


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (
            one == other or (math.isnan(one) and math.isnan(other))
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        equal_values = (
            one.dtype == other.dtype and one.shape == other.shape and one.requires_grad == other.requires_grad
        )
        return (
            equal_values
            and one.stride() == other.stride()
            and torch.equal(one.detach().nan_to_num(), other.detach().nan_to_num())
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=2000)
dtypes = npst.scalar_dtypes() | npst.array_dtypes(max_size=3)
arrays = npst.arrays(dtype=dtypes, shape=npst.array_shapes(min_dims=0, max_dims=3, max_side=9))
keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | texts
    | st.binary(max_size=20)
    | st.tuples(st.integers(), texts)
)
values = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.sets(keys, max_size=5)
        | st.frozensets(keys, max_size=5)
    ),
    max_leaves=12,
)
tensor_dtypes = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@given(values)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plain_values_and_arrays_round_trip(value: Any) -> None:
    assert same(round_trip(value), value)


@given(
    st.lists(st.integers(0, 5), max_size=4),
    st.sampled_from(tensor_dtypes),
    st.randoms(use_true_random=False),
    st.data(),
)
@settings(deadline=None)
def test_tensors_round_trip_with_memory_order(
    size: list[int], dtype: Any, chance: random.Random, data: Any
) -> None:
    tensor = torch.empty(size, dtype=dtype)
    tensor.copy_(torch.tensor([chance.randrange(2) for _ in range(tensor.numel())]).reshape(size))
    order = data.draw(st.permutations(range(len(size))))
    value = tensor.permute(*order) if size else tensor
    back = round_trip(value)
    assert back.dtype == dtype and torch.equal(back, value)
    if value.numel() > 1:
        assert encode(back).to_bytes() == encode(value.clone()).to_bytes()
    gap = value[..., ::2] if size else value
    assert torch.equal(round_trip(gap), gap)


def test_state_size_is_known_before_write() -> None:
    state = {"w": torch.ones(1000), "b": np.ones(777), "c": b"x" * 5000}
    encoded = encode(state)
    into = bytearray(b"\xff" * (encoded.size + 10))
    encoded.write_into(memoryview(into))
    assert bytes(into[: encoded.size]) == encoded.to_bytes() and into[encoded.size :] == b"\xff" * 10


def test_sets_encode_equally_in_every_process() -> None:
    """Though Python goes through a set of strings in another order in each."""
    script = (
        "from hopyard.trial_state.encode import encode; print(encode({'a', 'b', 'c', 'd', 'e', 1, "
        "(2, 'x')}).to_bytes().hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_equal_strings_encode_equally_regardless_of_identity() -> None:
    one = "".join(["a", "bc"])
    assert encode([one, one]).to_bytes() == encode(["".join(["ab", "c"]), one]).to_bytes()


def test_object_identity_round_trips() -> None:
    shared, tensor = [1], torch.ones(3)
    state: dict[str, Any] = {"a": shared, "b": [shared], "t": tensor, "u": tensor, "tied": tensor.detach()}
    state["self"] = state
    back = round_trip(state)
    assert back["a"] is back["b"][0] and back["t"] is back["u"] and back["self"] is back
    back["t"][0] = 5
    assert back["tied"][0] == 5  # over the same memory, as tied weights in a `state_dict()`


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any


class Slotted:
    __slots__ = ("x", "y")


class Custom:
    def __init__(self, made: int) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return (Custom, (self.made + 1,))


Point = collections.namedtuple("Point", "x y")


def test_objects_round_trip_like_pickle() -> None:
    slotted = Slotted()
    slotted.x = 3  # type: ignore[attr-defined]
    value = [
        Color.RED,
        Frozen(1, [2]),
        Point(1, 2),
        collections.Counter("aab"),
        collections.deque([1], 3),
        range(3),
        3 + 4j,
        ...,
    ]
    back = round_trip(
        [
            *value,
            slotted,
            math.sqrt,
            Color,
            collections.OrderedDict(b=1, a=2),
            collections.defaultdict(list, a=[1]),
        ]
    )
    assert back[:8] == value and back[8].x == 3 and not hasattr(back[8], "y")
    assert back[9] is math.sqrt and back[10] is Color and list(back[11]) == ["b", "a"]
    assert back[12]["new"] == [] and back[3]["zzz"] == 0
    assert decode(bytearray(encode(Custom(1)).to_bytes())).made == 2


def test_numpy_values_of_all_kinds_round_trip() -> None:
    structured = np.zeros(2, [("a", "i4"), ("b", [("c", "f8", (2,))])])
    structured["b"]["c"][0, 1] = 3
    for value in (
        np.float32(2),
        np.datetime64("2020-01-01"),
        np.bool_(True),
        structured,
        np.ones((3, 0)),
        np.array("text"),
        np.arange(9)[::2],
    ):
        assert same(round_trip(value), value) or (
            isinstance(value, np.generic) and round_trip(value) == value
        )
    fortran = round_trip(np.asfortranarray(np.arange(600.0).reshape(20, 30)))
    assert fortran.flags.f_contiguous and not fortran.flags.c_contiguous and fortran[3, 4] == 94
    objects = round_trip(np.array([[1, "a"], [None, [2]]], dtype=object))
    assert objects.tolist() == [[1, "a"], [None, [2]]]
    assert same(round_trip(np.random.default_rng(3)).random(), np.random.default_rng(3).random())
    masked = decode(bytearray(encode(np.ma.masked_array([1, 2], [True, False])).to_bytes()))
    assert masked.mask.tolist() == [True, False]
    decoded = round_trip(np.ones(1000))
    decoded += 1  # decoded arrays are writable


def test_model_optimiser_and_schedule_stay_linked() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30))
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, 2)
    model(torch.ones(4, 20)).sum().backward()
    optimiser.step()
    back = round_trip({"model": model, "optimiser": optimiser, "schedule": schedule})
    assert back["schedule"].optimizer is back["optimiser"]
    assert back["optimiser"].param_groups[0]["params"][0] is back["model"][0].weight
    for name in ("model", "optimiser"):
        mine = {"model": model, "optimiser": optimiser}[name].state_dict()
        assert encode(mine).to_bytes() == encode(back[name].state_dict()).to_bytes()


def test_pytorch_types_round_trip() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.note = "mine"
    back = round_trip(
        [
            parameter,
            torch.bfloat16,
            torch.device("cpu"),
            torch.Size([1]),
            torch.tensor(3),
            torch.ones(2, requires_grad=True),
        ]
    )
    assert isinstance(back[0], torch.nn.Parameter) and back[0].requires_grad and back[0].note == "mine"
    assert back[1] is torch.bfloat16 and back[5].requires_grad
    last = round_trip(torch.ones(2, 3, 40, 50).to(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(round_trip(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))
    generator = round_trip(torch.Generator().manual_seed(5))
    assert torch.equal(
        torch.rand(2, generator=generator), torch.rand(2, generator=torch.Generator().manual_seed(5))
    )
    assert torch.equal(round_trip(torch.ones(2, requires_grad=True) * 2), torch.full((2,), 2.0))


def test_random_generators_round_trip() -> None:
    for state in (random.getstate(), np.random.get_state(), torch.get_rng_state()):
        back = round_trip(state)
        assert type(back) is type(state)
    random.setstate(round_trip(random.getstate()))
    np.random.set_state(round_trip(np.random.get_state()))


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.act = lambda x: x


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"a": [1, {"f": lambda x: x}]}, r"state\['a'\]\[1\]\['f'\]: a lambda"),
        ({"log": open(__file__)}, r"state\['log'\]: a `_io.TextIOWrapper` cannot be serialized"),  # noqa: SIM115
        ({"model": Net()}, r"state\['model'\]\.act: a lambda"),
        ((x for x in ()), "state: a `generator` cannot be serialized"),
        ([sys], r"state\[0\]: a `module` cannot be serialized"),
        ({"x": type("Local", (), {})}, r"state\['x'\]: a class .* cannot be found again"),
        (collections.deque([collections.deque([print, iter(())])]), "list_iterator|tuple_iterator"),
    ],
    ids=["a lambda", "a file", "a module's attribute", "a generator", "a module", "a local class", "deep"],
)
def test_unsupported_value_is_named_by_path(state: Any, expected: str) -> None:
    if "iterator" in expected:
        round_trip(state)  # iterators are kept, as by pickle
        return
    with pytest.raises(SpecError, match=expected) as error:
        encode(state)
    assert error.value.hints


def test_endlessly_nested_state_is_reported() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SpecError, match="nested too deep"):
        encode(deep)


TO_DAMAGE = (
    {"a": [1, "text", 2.5, (3,)], "b": np.arange(200), "c": {1, 2}},
    np.zeros(3, [("x", "<i4"), ("y", "<f8", (2,))]),
    [np.float32(1), np.zeros((3, 4), order="F"), np.zeros((0, 3))],
    np.array([1, "a", None], dtype=object),
    {frozenset({1, 2}): collections.OrderedDict(a=1)},
)


@given(st.data())
@settings(deadline=None)
def test_damaged_state_raises_integrity_error(data: Any) -> None:
    """Or it is not detected, if it changes a number; it is never another error."""
    whole = bytearray(encode(data.draw(st.sampled_from(TO_DAMAGE))).to_bytes())
    head = state_format.START.size
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(IntegrityError):
        decode(whole[:cut])
    at = data.draw(st.integers(head, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        decode(whole)
    except (IntegrityError, SpecError):
        pass


def test_missing_code_is_reported() -> None:
    data = encode([collections.Counter]).to_bytes().replace(b"collections", b"collectoins")
    with pytest.raises(SpecError, match="cannot be read here"):
        decode(bytearray(data))


def test_digest_is_blake2b() -> None:
    assert digest(b"") == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"
    large = bytes(range(256)) * 40_000
    import hashlib

    assert digest(memoryview(large)) == hashlib.blake2b(large, digest_size=32).hexdigest()


@given(st.integers(0, 100))
def test_decoded_arrays_are_aligned_for_any_source_offset(shift: int) -> None:
    data = encode({"a": np.arange(500.0), "b": torch.ones(700)}).to_bytes()
    back = decode(memoryview(bytearray(bytes(shift) + data))[shift:])
    assert back["a"].ctypes.data % 64 == 0 and back["b"].data_ptr() % 64 == 0
    assert back["a"][499] == 499


@pytest.mark.parametrize(
    "value",
    [
        {
            "w": torch.arange(6.0).reshape(2, 3),
            "p": torch.nn.Parameter(torch.ones(2)),
            "size": torch.Size([2]),
            "dtype": torch.float16,
        },
        {"a": np.arange(3), "s": np.float32(1)},
        [
            1,
            2.5,
            "x",
            b"y",
            None,
            (1, 2),
            {1, 2},
            collections.deque([1]),
            collections.defaultdict(list, a=[1]),
            slice(1, 2),
        ],
    ],
)
def test_plain_states_of_other_user_are_read(value: Any) -> None:
    assert same(decode(bytearray(encode(value).to_bytes()), untrusted=True), value)


class Runs:
    def __init__(self, make: Any, *arguments: Any) -> None:
        self._made = make, arguments

    def __reduce__(self) -> Any:
        return self._made


@pytest.mark.parametrize("make", [eval, subprocess.check_call, torch.load, torch.hub.load, np.load, Runs])
def test_state_of_other_user_creates_no_objects(make: Any) -> None:
    data = encode({"state": [Runs(make, "1")]}).to_bytes()
    with pytest.raises(SpecError, match="not a tensor, array or plain value") as error:
        decode(bytearray(data), untrusted=True)
    assert "trust=True" in error.value.hints[0]


def test_pytorch_type_names_are_limited_to_allowed_names() -> None:
    """`getattr(torch, …)` would give any function of it."""
    for foreign in (False, True):
        with pytest.raises(IntegrityError, match="PyTorch has no `float23`"):
            decode(
                bytearray(encode(torch.float32).to_bytes().replace(b"float32", b"float23")), untrusted=foreign
            )
        with pytest.raises(IntegrityError, match="PyTorch has no `load`"):
            decode(bytearray(encode(torch.int8).to_bytes().replace(b"int8", b"load")), untrusted=foreign)


def test_class_of_moved_module_is_stored_under_original_name() -> None:
    config = Config({"lr": 0.1})
    encoded = encode({"config": config}).to_bytes()
    assert b"hopyard.studies.trainable.config" in encoded and b"hopyard.trainables" not in encoded
    assert decode(bytearray(encoded))["config"] == config
