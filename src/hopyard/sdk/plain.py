"""Plain values of another user's bytes: tensors, arrays, numbers, texts and containers of them.

Both formats (pickles and the states of studies) name classes and functions, call them, and set attributes. Of
another user's bytes no class or function of a library is ever called with arguments that its author chose,
and none is ever reachable: a name becomes a `Global`, an inert record, and small functions of this module
make each value from arguments that they check. A value that is finished by a state (`__setstate__`) is made
again, never changed. What a file makes takes memory in proportion to its own size. Standard library only;
frameworks are imported where the bytes need them.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import io
import math
import pathlib
import re
import sys
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hopyard.errors import IntegrityError, SpecError

_DEPTH = 100  # of the tuples in a key: Python hashes them by recursion, without a limit
_FACTOR, _SPARE = 4, 4096  # elements and bytes that calls may copy: per byte of the file, and always
_PARTS = 4096  # of a structured dtype
_SIMPLE = "biufcSUmMV"  # kinds of dtypes without a pointer in them
_ALIGNED = 0x80  # flag of a structured dtype
_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?")
_DTYPE = re.compile(r"[A-Za-z][0-9]*")
_UNIT = re.compile(r"[A-Za-zμ]+")
_ATOMS = frozenset(
    {
        *(type(None), type(...), bool, int, float, complex, str, bytes, bytearray, range),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, type(pathlib.Path()), pathlib.PurePosixPath),
    }
)
_SEQUENCES = frozenset({list, tuple, set, frozenset, collections.deque})
LISTS = frozenset({list, collections.deque})  # what elements are appended to
MAPPINGS = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})


@dataclass(frozen=True, slots=True)
class Global:
    """Stands for the class or function of this name, and is neither."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def not_plain(what: str) -> SpecError:
    return SpecError(
        f"it holds a `{what}`, which is no tensor, array or plain value; to read it would run code of "
        "another user",
        hints=(
            (
                "where you trust its author: `trust=True` reads all of it, and `--trust` of `hop fork` and "
                "`hop search resume` starts a run from it"
            ),
        ),
    )


def damaged(what: str) -> IntegrityError:
    return IntegrityError(f"it is damaged: {what}")


class PlainValues:
    """Makes the values of one file. size: of the file, in bytes; what calls copy is bounded by it."""

    def __init__(self, size: int) -> None:
        self._left = _FACTOR * size + _SPARE

    def named(self, module: str, name: str) -> Global:
        """Raises SpecError where no plain value is made by this name."""
        found = Global(_MOVED.get(module, module), name)
        if found not in _MAKE and found not in _NAMES:
            raise not_plain(f"{module}.{name}")
        return found

    def call(self, make: Any, arguments: Any) -> Any:
        """Raises SpecError, IntegrityError."""
        if type(make) is not Global:
            raise not_plain(f"call of a {type(make).__qualname__}")
        if make not in _MAKE:
            raise not_plain(str(make))
        if type(arguments) is not tuple:
            raise damaged(f"{make} is called with no tuple")
        try:
            return _MAKE[make](self, *arguments)
        except (TypeError, ValueError, ArithmeticError) as bad:
            raise damaged(f"{make}: {bad}") from bad

    def build(self, made: Any, state: Any) -> Any:
        """The value that `made` is with this state: a new one, except for attributes of an OrderedDict, as a
        `state_dict()` has them."""
        numpy = sys.modules.get("numpy")
        try:
            if type(made) is uuid.UUID:
                return uuid.UUID(int=_exact(_exact(state, dict)["int"], int))
            if type(made) is collections.OrderedDict:
                return _with_attributes(made, _exact(state, dict))
            if numpy is not None and type(made) is numpy.ndarray:
                return self._array(numpy, *_exact(state, tuple))
            if numpy is not None and isinstance(made, numpy.dtype):
                return _built_dtype(numpy, made, _exact(state, tuple))
        except (TypeError, ValueError, KeyError, ArithmeticError) as bad:
            raise damaged(f"a state of a {type(made).__qualname__}: {bad}") from bad
        raise not_plain(f"{made if type(made) is Global else type(made).__qualname__} with a state")

    def is_replaced(self, made: Any) -> bool:
        """Whether `build` returns another object."""
        return type(made) is uuid.UUID or type(made).__module__.partition(".")[0] == "numpy"

    def key(self, value: Any) -> Any:
        """value, which can be hashed, in a time that the file's size bounds."""
        level = [value]
        for _ in range(_DEPTH):
            self.charge(len(level))
            level = [part for one in level if type(one) is tuple for part in one]
            if not level:
                try:
                    hash(value)
                except TypeError as bad:
                    raise damaged(str(bad)) from bad
                return value
        raise damaged("a key is nested too deep")

    def charge(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise damaged("its values are much larger than it is")

    def checked(self, value: Any) -> Any:
        """value, with plain parts only. Raises SpecError."""
        seen, left = {id(value)}, [value]
        while left:
            for part in _parts(left.pop()):
                if type(part) not in _ATOMS and id(part) not in seen:
                    seen.add(id(part))
                    left.append(part)
        return value

    # -- NumPy
    # ----------------------------------------------------------------------------------------------------

    def _array(self, numpy: Any, _version: Any, shape: Any, dtype: Any, fortran: Any, data: Any) -> Any:
        count = math.prod(_shape(shape))
        order = "F" if fortran else "C"
        if dtype == numpy.dtype(object):
            if len(_exact(data, list)) != count:
                raise damaged("an array of objects has another number of them")
            self.charge(count)
            made = numpy.empty(count, dtype=object)
            for at, one in enumerate(data):
                made[at] = one
            return made.reshape(shape, order=order)
        self.charge(len(_exact(data, bytes)))
        return _over(numpy, bytearray(data), dtype, shape, order)


def _over(numpy: Any, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    size = math.prod(_shape(shape)) * plain_dtype(dtype).itemsize
    if type(data) not in (bytes, bytearray) or len(data) != size or order not in ("C", "F"):
        raise damaged(f"no array of {shape!r} {dtype} is made of this")
    return numpy.ndarray(shape, dtype, data, order=order)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_size_of(one) for one in _exact(value, tuple))


def _size_of(value: Any) -> int:
    if _exact(value, int) < 0:
        raise ValueError(f"{value} is no size")
    return value  # type: ignore[no-any-return]


def is_plain_dtype(dtype: Any) -> bool:
    """Whether its elements are numbers, texts and bytes alone, in few parts. Memory that is given must never
    be taken for pointers to objects; parts that are in several places make it exponentially many."""
    import numpy

    left, count = [dtype], 0
    while left:
        one, count = left.pop(), count + 1
        if (
            not isinstance(one, numpy.dtype)
            or one.kind not in _SIMPLE
            or one.hasobject
            or one.isbuiltin == 2
            or count > _PARTS
        ):
            return False
        left += [one.base] if one.subdtype is not None else [part[0] for part in (one.fields or {}).values()]
    return True


def plain_dtype(dtype: Any) -> Any:
    if not is_plain_dtype(dtype):
        raise not_plain(f"array of {dtype if type(dtype) in (str, Global) else type(dtype).__qualname__}")
    return dtype


def _reconstruct(_: PlainValues, kind: Any, *_shape_and_code: Any) -> Any:
    """An array of no elements; `build` makes the one that it stands for."""
    import numpy

    if kind != Global("numpy", "ndarray"):
        raise not_plain(str(kind))
    return numpy.empty(0, dtype="b")


def _from_buffer(_: PlainValues, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    import numpy

    return _over(numpy, data, dtype, shape, order)


def _scalar(values: PlainValues, dtype: Any, data: Any) -> Any:
    import numpy

    values.charge(len(_exact(data, bytes)))
    return _over(numpy, bytearray(data), dtype, (), "C")[()]


def _dtype(_: PlainValues, text: Any, *_align_and_copy: Any) -> Any:
    """A new object in each call: `build` replaces it alone."""
    import numpy

    if _DTYPE.fullmatch(_exact(text, str)) is None:
        raise damaged(f"{text!r} is no dtype")
    made = numpy.dtype(numpy.dtype(text), copy=True)
    return made if made == numpy.dtype(object) else plain_dtype(made)


def _built_dtype(numpy: Any, made: Any, state: tuple[Any, ...]) -> Any:
    """As `dtype.__setstate__` reads it; beyond the flags only the unit of times is read."""
    _, order, sub, names, fields, size, _, flags, *more = state
    if _exact(order, str) not in ("<", ">", "=", "|"):
        raise damaged(f"{order!r} is no order of bytes")
    if made.kind == "O":
        return numpy.dtype(object)
    if sub is not None:
        base, shape = _exact(sub, tuple)
        return numpy.dtype((plain_dtype(base), _shape(shape)))
    if names is not None:
        parts = [_exact(_exact(fields, dict)[_exact(name, str)], tuple) for name in _exact(names, tuple)]
        said: dict[str, Any] = {
            "names": list(names),
            "formats": [plain_dtype(part[0]) for part in parts],
            "itemsize": _exact(size, int),
        }
        said["offsets"] = [_exact(part[1], int) for part in parts]
        if any(len(part) > 2 for part in parts):
            said["titles"] = [_exact(part[2], str) if len(part) > 2 else None for part in parts]
        return plain_dtype(numpy.dtype(said, align=bool(_exact(flags, int) & _ALIGNED)))
    if made.kind in "mM" and more:
        unit, number = _exact(_exact(more[0], tuple)[1], tuple)[:2]
        name = _exact(unit, bytes).decode()
        if _UNIT.fullmatch(name) is None:
            raise damaged(f"{name!r} is no unit of time")
        made = numpy.dtype(f"{made.kind}8" + (f"[{_exact(number, int)}{name}]" if name != "generic" else ""))
    return plain_dtype(made.newbyteorder(order))


# -- PyTorch
# -------------------------------------------------------------------------------------------------------


def _storage(values: PlainValues, data: Any) -> Any:
    """The memory of a tensor, read by PyTorch's own reader of weights. It is never read another way."""
    import torch

    values.charge(len(_exact(data, bytes)))
    made = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if type(made) is not torch.storage.TypedStorage:
        raise not_plain(type(made).__qualname__)
    return made


def _tensor(
    _: PlainValues,
    storage: Any,
    offset: Any,
    size: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any = None,
    metadata: Any = None,
) -> Any:
    """PyTorch makes a storage larger for a tensor that does not fit into it: one that does not is refused."""
    import torch

    if metadata is not None or hooks:
        raise not_plain("tensor with hooks or a mark of its own")
    if type(storage) is not torch.storage.TypedStorage or len(_shape(size)) != len(_shape(strides)):
        raise damaged("no tensor is made of this")
    end = (
        _exact(offset, int)
        + sum((extent - 1) * stride for extent, stride in zip(size, strides, strict=True))
        + 1
    )
    if offset < 0 or (0 not in size and end > storage._size()):
        raise damaged("a tensor is larger than its storage")
    try:
        return torch._utils._rebuild_tensor_v2(
            storage, offset, tuple(size), tuple(strides), requires_grad is True, collections.OrderedDict()
        )
    except RuntimeError as bad:
        raise damaged(f"a tensor: {bad}") from bad


def _parameter(_: PlainValues, data: Any, requires_grad: Any, hooks: Any = None) -> Any:
    import torch

    if type(data) is not torch.Tensor or hooks:
        raise not_plain("parameter with hooks")
    return torch.nn.Parameter(data, requires_grad=requires_grad is True)


def _size(_: PlainValues, sizes: Any) -> Any:
    import torch

    return torch.Size(_shape(sizes))


def _device(_: PlainValues, kind: Any, index: Any = None) -> Any:
    import torch

    try:
        return (
            torch.device(_exact(kind, str))
            if index is None
            else torch.device(_exact(kind, str), _exact(index, int))
        )
    except RuntimeError as bad:
        raise damaged(f"a device: {bad}") from bad


# -- the standard library
# --------------------------------------------------------------------------------------------


def _exact(value: Any, kind: type[Any]) -> Any:
    """No subclass: those come with methods of their own."""
    if type(value) is not kind:
        raise TypeError(f"a {kind.__qualname__} is due, and a {type(value).__qualname__} is there")
    return value


def _with_attributes(made: Any, attributes: dict[Any, Any]) -> Any:
    for name in attributes:
        if hasattr(collections.OrderedDict, _exact(name, str)):
            raise not_plain(f"OrderedDict with `{name}` of its own")
    vars(made).update(attributes)
    return made


def _keys(values: PlainValues, elements: Any) -> list[Any]:
    values.charge(len(_exact(elements, list)))
    return [values.key(one) for one in elements]


def _counter(values: PlainValues, counts: Any = None) -> Any:
    made: Any = collections.Counter()
    if counts is not None:
        values.charge(len(_exact(counts, dict)))
        dict.update(made, counts)
    return made


def _default_dict(_: PlainValues, factory: Any = None) -> Any:
    if factory is not None and factory not in _FACTORIES:
        raise not_plain(
            f"defaultdict of {factory if type(factory) is Global else type(factory).__qualname__}"
        )
    return collections.defaultdict(None if factory is None else _FACTORIES[factory])


def _deque(_: PlainValues, elements: Any = None, limit: Any = None) -> Any:
    """Its elements are appended afterwards."""
    if type(elements) not in (type(None), list, tuple) or elements:
        raise damaged("a deque is made of elements")
    return collections.deque(maxlen=limit if limit is None else _exact(limit, int))


def _bytearray(values: PlainValues, data: Any = b"") -> Any:
    values.charge(len(_exact(data, bytes)))
    return bytearray(data)


def _fraction(_: PlainValues, above: Any, below: Any = 1) -> Any:
    if type(above) is str:
        if _NUMBER.fullmatch(above) is None:
            raise damaged("no fraction")
        return fractions.Fraction(above)
    return fractions.Fraction(_exact(above, int), _exact(below, int))


def _moment(kind: Any) -> Callable[..., Any]:
    def make(_: PlainValues, data: Any, zone: Any = None) -> Any:
        arguments = (
            (_exact(data, bytes),) if zone is None else (_exact(data, bytes), _exact(zone, datetime.timezone))
        )
        return kind(*arguments).replace()  # which checks each part; the bytes alone are hardly checked

    return make


def _zone(_: PlainValues, offset: Any, *name: Any) -> Any:
    return datetime.timezone(_exact(offset, datetime.timedelta), *(_exact(one, str) for one in name))


def _of(make: Callable[..., Any], kind: type[Any]) -> Callable[..., Any]:
    """A call of this with arguments of this kind only, and no larger than it makes of them."""

    def call(_: PlainValues, *arguments: Any) -> Any:
        return make(*(_exact(one, kind) for one in arguments))

    return call


def _new(_: PlainValues, kind: Any) -> Any:
    if kind != Global("uuid", "UUID"):
        raise not_plain(str(kind) if type(kind) is Global else type(kind).__qualname__)
    return uuid.UUID(int=0)  # `build` makes the one that it stands for


NEW = Global("copyreg", "__newobj__")
# in NumPy 2
_MOVED = {"numpy._core.multiarray": "numpy.core.multiarray", "numpy._core.numeric": "numpy.core.numeric"}
_FACTORIES: dict[Global, Callable[[], Any]] = {
    **{
        Global("builtins", kind.__name__): kind
        for kind in (bool, complex, dict, float, frozenset, int, list, set, str, tuple)
    },
    **{
        Global("collections", kind.__name__): kind
        for kind in (collections.Counter, collections.OrderedDict, collections.deque)
    },
}
_NAMES = frozenset({*_FACTORIES, Global("numpy", "ndarray"), Global("uuid", "UUID")})  # arguments alone
_MAKE: dict[Global, Callable[..., Any]] = {
    NEW: _new,
    Global("builtins", "bytearray"): _bytearray,
    Global("builtins", "complex"): _of(complex, float),
    Global("builtins", "frozenset"): lambda values, elements: frozenset(_keys(values, elements)),
    Global("builtins", "range"): _of(range, int),
    Global("builtins", "set"): lambda values, elements: set(_keys(values, elements)),
    Global("builtins", "slice"): lambda _, *parts: slice(*parts),
    Global("collections", "Counter"): _counter,
    Global("collections", "OrderedDict"): lambda _: collections.OrderedDict(),
    Global("collections", "defaultdict"): _default_dict,
    Global("collections", "deque"): _deque,
    Global("datetime", "date"): _moment(datetime.date),
    Global("datetime", "datetime"): _moment(datetime.datetime),
    Global("datetime", "time"): _moment(datetime.time),
    Global("datetime", "timedelta"): _of(datetime.timedelta, int),
    Global("datetime", "timezone"): _zone,
    Global("decimal", "Decimal"): _of(decimal.Decimal, str),
    Global("fractions", "Fraction"): _fraction,
    Global("numpy", "dtype"): _dtype,
    Global("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    Global("numpy.core.multiarray", "scalar"): _scalar,
    Global("numpy.core.numeric", "_frombuffer"): _from_buffer,
    Global("pathlib", "PosixPath"): _of(pathlib.Path, str),
    Global("pathlib", "PurePosixPath"): _of(pathlib.PurePosixPath, str),
    Global("torch", "Size"): _size,
    Global("torch", "device"): _device,
    Global("torch._utils", "_rebuild_parameter"): _parameter,
    Global("torch._utils", "_rebuild_tensor_v2"): _tensor,
    Global("torch.storage", "_load_from_bytes"): _storage,
}


def _parts(value: Any) -> Iterable[Any]:
    """What a value is made of. Raises SpecError where it is not plain."""
    kind = type(value)
    if kind in _ATOMS:
        return ()
    if kind in _SEQUENCES:
        return value  # type: ignore[no-any-return]
    if kind in MAPPINGS:
        return [*value.keys(), *value.values(), *getattr(value, "__dict__", {}).values()]
    if kind is slice:
        return value.start, value.stop, value.step
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is numpy.ndarray:
        return value.ravel().tolist() if value.dtype.hasobject else ()
    if numpy is not None and isinstance(value, numpy.generic | numpy.dtype):
        return ()
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        return vars(value).values()  # type: ignore[no-any-return]
    if torch is not None and kind in (
        torch.Size,
        torch.device,
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
    ):
        return ()
    raise not_plain(str(value) if kind is Global else f"{kind.__module__}.{kind.__qualname__}")
