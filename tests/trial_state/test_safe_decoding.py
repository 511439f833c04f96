"""Both formats of states of other users: allowed objects, and that nothing else is called, changed or
filled."""

from __future__ import annotations

import collections
import copyreg
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import random
import struct
import sys
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopyard.errors import IntegrityError, SpecError
from hopyard.sdk import object_state, safe_values
from hopyard.sdk.safe_unpickler import _BoundedFile, _Unpickler
from hopyard.trial_state import state_format
from hopyard.trial_state.decode import decode
from hopyard.trial_state.encode import encode

torch = pytest.importorskip("torch")

STRUCTURED = np.zeros(3, np.dtype([("a", "<i4"), ("b", [("c", ">f8", (2,))]), ("t", "M8[us]")]))
VALUES: dict[str, Any] = {
    "arrays": [np.arange(6).astype(code).reshape(2, 3) for code in "?bBhHiIlLqQefdgFDG"],
    "other arrays": [
        np.array(["a", "µ"]),
        np.array([b"x"]),
        np.array([b"xy"], "V2"),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([5], "m8[25s]"),
    ],
    "orders": [
        np.arange(4, dtype=">u2"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3)),
        np.array(5),
    ],
    "structured": STRUCTURED,
    "dtypes": [np.dtype("f4"), np.dtype(">i8"), STRUCTURED.dtype, np.dtype("m8[ns]")],
    "scalars": [np.float32(2), np.int64(3), np.bool_(True), np.datetime64("2020-01-01"), np.str_("x")],
    "objects": np.array([[1, [2]], [None, [3]]], dtype=object),
    "numpy": np.random.get_state(),
    "bits": np.random.default_rng(3).bit_generator.state,
    "python": random.getstate(),
    "containers": [
        {1, (2, "x")},
        frozenset({3}),
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        collections.deque([1, 2], 5),
    ],
    "default": collections.defaultdict(list, a=[1]),
    "numbers": [
        3 + 4j,
        slice(1, None),
        range(0, 9, 2),
        decimal.Decimal("1.50"),
        fractions.Fraction(-1, 3),
        bytearray(b"x"),
        1 << 99,
    ],
    "times": [
        datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC),
        datetime.date(2020, 1, 2),
        datetime.time(5),
        datetime.timedelta(1, 2, 3),
    ],
    "ids": [uuid.UUID(int=5), pathlib.PosixPath("/a/b")],
}


def read_pickle(folder: Path, data: bytes) -> Any:
    (folder / "x.pkl").write_bytes(data)
    return object_state.read_state(str(folder / "x.pkl"), is_untrusted=True)


def read_state(_: Path, data: bytes) -> Any:
    return decode(bytearray(data), untrusted=True)


def equal_values(one: Any, other: Any) -> bool:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        alike_in_memory = (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.flags.f_contiguous == other.flags.f_contiguous
        )
        return alike_in_memory and (
            one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | collections.deque):
        return len(one) == len(other) and all(map(equal_values, one, other))
    return bool(one == other)


@pytest.mark.parametrize("protocol", [3, 4, 5, "state"])
@pytest.mark.parametrize("of", VALUES)
def test_plain_values_round_trip(tmp_path: Path, protocol: Any, of: str) -> None:
    value = VALUES[of]
    for candidate in (value, [value, value]):
        result = (
            read_state(tmp_path, encode(candidate).to_bytes())
            if protocol == "state"
            else read_pickle(tmp_path, pickle.dumps(candidate, protocol))
        )
        assert equal_values(result, candidate)
    assert result[0] is result[1] or isinstance(value, tuple)


def test_module_and_optimiser_states_round_trip(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimiser.step()
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "chance": torch.get_rng_state(),
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    expected = encode(state).to_bytes()
    for decoded in (read_state(tmp_path, expected), read_pickle(tmp_path, pickle.dumps(state))):
        assert decoded["model"]._metadata == state["model"]._metadata
        torch.optim.Adam(model.parameters()).load_state_dict(decoded["optimiser"])
        assert encode(decoded["optimiser"]).to_bytes() == encode(state["optimiser"]).to_bytes()
        assert torch.equal(decoded["chance"], state["chance"]) and type(decoded["p"]) is torch.nn.Parameter


def test_structured_dtypes_round_trip_through_pickle(tmp_path: Path) -> None:
    dtypes = [
        np.dtype([("a", "i1"), ("b", ">f8")], align=True),
        np.dtype([(("title", "a"), "i4")]),
        np.dtype({"names": ["x"], "formats": ["u1"], "offsets": [3], "itemsize": 9}),
    ]
    for dtype in dtypes:
        result = read_pickle(tmp_path, pickle.dumps(np.zeros(2, dtype)))
        assert (
            result.dtype == dtype
            and result.dtype.isalignedstruct == dtype.isalignedstruct
            and result.dtype.fields == dtype.fields
        )


# -- forged files --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Name:
    module: str
    name: str


@dataclass(frozen=True)
class Call:
    make: Any
    arguments: tuple[Any, ...]
    state: Any = None
    elements: tuple[Any, ...] | None = None


def as_pickle(value: Any) -> bytes:
    if isinstance(value, Name):
        return f"c{value.module}\n{value.name}\n".encode()
    if isinstance(value, Call):
        filled = b"" if value.elements is None else b"(" + b"".join(map(as_pickle, value.elements)) + b"e"
        built = b"" if value.state is None else as_pickle(value.state) + b"b"
        called = as_pickle(value.make) + (
            b"" if value.make in AS_THEY_ARE else as_pickle(value.arguments) + b"R"
        )
        return called + filled + built
    if isinstance(value, tuple):
        return b"(" + b"".join(map(as_pickle, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(as_pickle(part) for pair in value.items() for part in pair) + b"u"
    return pickle.dumps(value, 3)[2:-1].partition(b"q\x00")[0]


AS_THEY_ARE: tuple[Any, ...] = (
    Name("collections", "Counter"),
    Name("copyreg", "__newobj__"),
)  # a state for a class, without a call


def length(size: int) -> bytes:
    return bytes([size]) if size < 255 else b"\xff" + state_format.LENGTH.pack(size)


def as_state(value: Any) -> bytes:
    if isinstance(value, Name):
        return state_format.GLOBAL + b"".join(
            length(len(text)) + text for text in (value.module.encode(), value.name.encode())
        )
    if isinstance(value, Call):
        elements = (
            state_format.NONE
            if value.elements is None
            else state_format.LIST + length(len(value.elements)) + b"".join(map(as_state, value.elements))
        )
        return (
            state_format.OBJECT
            + as_state(value.make)
            + as_state(value.arguments)
            + state_format.NONE
            + as_state(value.state)
            + elements
            + state_format.NONE
        )
    if isinstance(value, tuple):
        return state_format.TUPLE + length(len(value)) + b"".join(map(as_state, value))
    if isinstance(value, dict):
        return (
            state_format.DICT
            + length(len(value))
            + b"".join(as_state(part) for pair in value.items() for part in pair)
        )
    return (
        encode(value).to_bytes()[state_format.START.size :].rstrip(b"\0")
        if not isinstance(value, bytes)
        else state_format.BYTES + length(len(value)) + value
    )


def state_of(head: bytes) -> bytes:
    size = state_format.align_up(state_format.START.size + len(head))
    return (state_format.START.pack(state_format.MAGIC, size, size) + head).ljust(size, b"\0")


FORMATS: list[tuple[Callable[[Path, bytes], Any], Callable[[Any], bytes]]] = [
    (read_pickle, lambda value: b"\x80\x03" + as_pickle(value) + b"."),
    (read_state, lambda value: state_of(as_state(value))),
]
ADDRESS = struct.pack("<Q", 0x41414141)
OBJECTS = Call(Name("numpy", "dtype"), ("O8", False, True))
HIDDEN = Call(
    Name("numpy", "dtype"), ("V8", False, True), state=(3, "|", None, ("a",), {"a": (OBJECTS, 0)}, 8, 1, 16)
)
RECONSTRUCTED = Call(
    Name("numpy._core.multiarray", "_reconstruct"),
    (Name("numpy", "ndarray"), (0,), b"b"),
    state=(1, (1,), OBJECTS, False, ADDRESS),
)
FORGED = {
    "an array over addresses": Call(Name("numpy", "ndarray"), ((1,), OBJECTS, ADDRESS)),
    "a buffer of addresses": Call(Name("numpy._core.numeric", "_frombuffer"), (ADDRESS, OBJECTS, (1,), "C")),
    "a scalar of an address": Call(Name("numpy._core.multiarray", "scalar"), (OBJECTS, ADDRESS)),
    "a state of an array": RECONSTRUCTED,
    "addresses in a field": Call(Name("numpy._core.numeric", "_frombuffer"), (ADDRESS, HIDDEN, (1,), "C")),
    "addresses of texts": Call(
        Name("numpy._core.numeric", "_frombuffer"),
        (ADDRESS * 2, Call(Name("numpy", "dtype"), ("T", False, True)), (1,), "C"),
    ),
    "a field beyond the element": Call(
        Name("numpy", "dtype"),
        ("V8", False, True),
        state=(3, "|", None, ("a",), {"a": (Call(Name("numpy", "dtype"), ("f8",)), 4096)}, 8, 1, 16),
    ),
    "an array beyond its buffer": Call(
        Name("numpy._core.numeric", "_frombuffer"),
        (ADDRESS, Call(Name("numpy", "dtype"), ("f8",)), (10**6,), "C"),
    ),
    "attributes of a class": Call(Name("collections", "Counter"), ({},), state=(None, {"most_common": 1})),
    "defaults of a function": Call(
        Name("copyreg", "__newobj__"), (Name("uuid", "UUID"),), state=(None, {"__defaults__": (1, 2)})
    ),
    "methods of a dict": Call(Name("collections", "OrderedDict"), (), state={"items": 1}),
    "any new object": Call(Name("copyreg", "__newobj__"), (Name("builtins", "int"), 5)),
    "any old object": Call(
        Name("copyreg", "_reconstructor"), (Name("builtins", "object"), Name("builtins", "object"), None)
    ),
    "a long list": Call(Name("builtins", "list"), (Call(Name("builtins", "range"), (10**8,)),)),
    "many bytes": Call(Name("builtins", "bytearray"), (10**8,)),
    "a set of a range": Call(Name("builtins", "set"), (Call(Name("builtins", "range"), (10**8,)),)),
    "a queue of a range": Call(Name("collections", "deque"), (Call(Name("builtins", "range"), (10**8,)),)),
    "a large fraction": Call(Name("fractions", "Fraction"), ("1e10000000",)),
    "a factory that calls": Call(Name("collections", "defaultdict"), (Name("copyreg", "__newobj__"),)),
    "a name alone": {"a": Name("copyreg", "__newobj__")},
    "a call of a value": Call("text", ()),
}


@pytest.mark.parametrize("of", FORGED)
@pytest.mark.parametrize(("read", "forge"), FORMATS, ids=["pickle", "state"])
def test_forged_files_are_refused(tmp_path: Path, read: Any, forge: Any, of: str) -> None:
    before = class_attributes()
    with pytest.raises((SpecError, IntegrityError)):
        read(tmp_path, forge(FORGED[of]))
    assert class_attributes() == before


def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    data = pickle.dumps(torch.zeros(77), 4)
    assert b"K\x4d\x85" in data
    with pytest.raises(IntegrityError, match="larger than its storage"):
        read_pickle(tmp_path, data.replace(b"K\x4d\x85", b"K\x4e\x85"))


@pytest.mark.parametrize("deep", [b")" + b"\x85" * 100_000, b")" + b"2\x86" * 200], ids=["deep", "wide"])
def test_recursive_and_slow_keys_are_refused(tmp_path: Path, deep: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"nested too deep|much larger"):
        read_pickle(tmp_path, b"\x80\x03}" + deep + b"Ns.")


def test_repeatedly_copied_values_are_refused(tmp_path: Path) -> None:
    copies = b"".join(b"h\x01h\x00\x85R" for _ in range(5000))
    data = (
        b"\x80\x03cbuiltins\nbytearray\nq\x01"
        + b"0B"
        + struct.pack("<I", 10_000)
        + bytes(10_000)
        + b"q\x000("
        + copies
        + b"l."
    )
    with pytest.raises(IntegrityError, match="much larger"):
        read_pickle(tmp_path, data)


@pytest.mark.parametrize(
    "code", [b"\x95", b"\x8e", b"\x96", b"\x8d"], ids=["frame", "bytes", "bytearray", "text"]
)
def test_allocation_is_bounded_by_file_size(tmp_path: Path, code: bytes) -> None:
    data = b"\x80\x05" + code + struct.pack("<Q", 1 << 28) + b"x."
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="ends in the middle"):
            read_pickle(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


# -- any bytes -----------------------------------------------------------------------------------------------


def class_attributes() -> list[dict[str, Any]]:
    """Returns the attributes of all classes that the files may name."""
    named = [getattr(collections, name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")]
    return [
        dict(vars(value))
        for value in [
            *named,
            uuid.UUID,
            fractions.Fraction,
            safe_values,
            safe_values.SafeValues,
            safe_values.Global,
            copyreg,
            np.dtype,
            np.ndarray,
        ]
    ] + [
        {"defaults": copyreg.__newobj__.__defaults__}  # type: ignore[attr-defined]
    ]


_watched: list[str] | None = None


def _watch(event: str, _: Any) -> None:
    if _watched is not None and event.startswith(
        ("os.", "subprocess.", "exec", "code.", "function.", "object.__setattr__", "shutil.", "socket.")
    ):
        _watched.append(event)


sys.addaudithook(_watch)
NAMES = [
    *safe_values._BUILDERS,
    *safe_values._ALLOWED_GLOBALS,
    Name("os", "system"),
    Name("builtins", "eval"),
    Name("builtins", "getattr"),
]
PIECES = [
    *(as_pickle(Name(name.module, name.name)) for name in NAMES),
    *(
        as_pickle(one)
        for one in (
            0,
            1,
            -1,
            10**6,
            1.5,
            None,
            True,
            "f8",
            "O8",
            "V8",
            "a",
            "|",
            "C",
            ADDRESS,
            (),
            (0,),
            (1,),
            {},
            [],
        )
    ),
    *(as_pickle(one) for one in (OBJECTS, HIDDEN, RECONSTRUCTED)),
    *(bytes([code]) for code in b"()tRb\x81\x92eausd\x8f\x90\x91l]}\x8520\x86\x87\x93\x94io\x82Q\x97\x98"),
    *(
        b"h\x00",
        b"h\x01",
        b"q\x00",
        b"q\x01",
        b"\x95" + b"\xff" * 8,
        b"\x8e" + b"\xff" * 8,
        b"\x96" + b"\xff" * 8,
        b"r\xff\xff\xff\x7f",
    ),
]
GOOD = [pickle.dumps(value, 4) for value in VALUES.values()]
GOOD_STATES = [encode(value).to_bytes() for value in VALUES.values()] + [
    encode(torch.ones(3)).to_bytes(),
    state_of(as_state(RECONSTRUCTED)),
]


@st.composite
def corrupted(draw: Any, valid_files: list[bytes], begin: int) -> bytes:
    data = bytearray(draw(st.sampled_from(valid_files)))
    for _ in range(draw(st.integers(1, 6))):
        data[draw(st.integers(begin, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def only_errors(read: Callable[[], Any]) -> None:
    global _watched
    before = class_attributes()
    _watched = []
    try:
        safe_values.SafeValues(10**6).check_value(read())
    except Exception:  # of any kind: the file is damaged
        pass
    finally:
        events, _watched = _watched, None
    assert not events and class_attributes() == before


def decode_with_limit(data: bytes) -> Any:
    values = safe_values.SafeValues(len(data))
    return values.check_value(_Unpickler(_BoundedFile(io.BytesIO(data), len(data)), values).load())


# PyTorch and codecs import parts at their first use: that runs code, which is watched below
for _first in (pickle.dumps(torch.ones(1)), b"\x80\x04Va\n."):
    decode_with_limit(_first)


@given(
    st.lists(st.sampled_from(PIECES), max_size=40).map(lambda pieces: b"\x80\x04" + b"".join(pieces) + b".")
    | corrupted(GOOD, 2)
)
@settings(deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
def test_no_pickle_calls_or_changes_anything(data: bytes) -> None:
    only_errors(lambda: decode_with_limit(data))


@given(corrupted(GOOD_STATES, state_format.START.size))
@settings(deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
def test_no_state_calls_or_changes_anything(data: bytes) -> None:
    only_errors(lambda: decode(bytearray(data), untrusted=True))
