"""Plain values from another user's bytes: tensors, arrays, numbers, text and containers of them.

Both formats (pickles and study states) name classes and functions, call them, and set attributes. No class or
function of a library is ever called with arguments from another user's bytes, and none is reachable. A name
becomes a `Global`, an inert record, and small functions of this module build each value from arguments that
they check. A value that is completed by a state (`__setstate__`) is built again, never changed. The memory of
the values is proportional to the size of the file. Standard library only; frameworks are imported only if the
bytes need them.
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
from typing import Any

from hopyard.backports import dataclass, zip
from hopyard.errors import IntegrityError, SpecError

_MAX_DEPTH = 100  # of nested tuples in a key: Python hashes them recursively, without a limit
_MAX_EXPANSION, _EXPANSION_ALLOWANCE = (
    4,
    4096,
)  # elements and bytes that calls may copy: per byte of the file, plus a constant
_MAX_PARTS = 4096  # of a structured dtype
_PLAIN_DTYPE_KINDS = "biufcSUmMV"  # kinds of dtypes without a pointer in them
_ALIGNMENT = 0x80  # flag of a structured dtype
_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?")
_DTYPE = re.compile(r"[A-Za-z][0-9]*")
_UNIT = re.compile(r"[A-Za-zμ]+")
_ATOMIC_TYPES = frozenset(
    {
        *(type(None), type(...), bool, int, float, complex, str, bytes, bytearray, range),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, type(pathlib.Path()), pathlib.PurePosixPath),
    }
)
_SEQUENCE_TYPES = frozenset({list, tuple, set, frozenset, collections.deque})
LIST_TYPES = frozenset({list, collections.deque})  # containers to which elements are appended
MAPPING_TYPES = frozenset({dict, collections.OrderedDict, collections.defaultdict, collections.Counter})


@dataclass(frozen=True, slots=True)
class Global:
    """Represents the class or function of this name without being it."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def unsafe_value_error(description: str) -> SpecError:
    return SpecError(
        f"it holds a `{description}`, which is not a tensor, array or plain value; reading it would run "
        "another user's code",
        hints=(
            (
                "if you trust its author: read it with `trust=True`, or use `--trust` of `hop fork` and "
                "`hop search resume` to start a run from it"
            ),
        ),
    )


def corrupt_value_error(description: str) -> IntegrityError:
    return IntegrityError(f"it is damaged: {description}")


class SafeValues:
    """Builds the values of one file. size: of the file, in bytes; it bounds how much calls may copy."""

    def __init__(self, size: int) -> None:
        self._remaining_budget = _MAX_EXPANSION * size + _EXPANSION_ALLOWANCE

    def resolve_global(self, module: str, name: str) -> Global:
        """Returns the `Global` of this name. Raises SpecError if it builds no plain value."""
        resolved = Global(_RENAMED_MODULES.get(module, module), name)
        if resolved not in _BUILDERS and resolved not in _ALLOWED_GLOBALS:
            raise unsafe_value_error(f"{module}.{name}")
        return resolved

    def call(self, factory: Any, arguments: Any) -> Any:
        """Calls the function that replaces `factory`. Raises SpecError for an unsafe one, IntegrityError for
        bad arguments."""
        if type(factory) is not Global:
            raise unsafe_value_error(f"call of a {type(factory).__qualname__}")
        if factory not in _BUILDERS:
            raise unsafe_value_error(str(factory))
        if type(arguments) is not tuple:
            raise corrupt_value_error(f"the arguments of {factory} are not a tuple")
        try:
            return _BUILDERS[factory](self, *arguments)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise corrupt_value_error(f"{factory}: {error}") from error

    def set_state(self, instance: Any, state: Any) -> Any:
        """Returns the value of `instance` with this state: a new one, except for attributes of an
        OrderedDict, which a `state_dict()` has."""
        numpy = sys.modules.get("numpy")
        try:
            if type(instance) is uuid.UUID:
                return uuid.UUID(int=_check_type(_check_type(state, dict)["int"], int))
            if type(instance) is collections.OrderedDict:
                return _with_attributes(instance, _check_type(state, dict))
            if numpy is not None and type(instance) is numpy.ndarray:
                return self._array(numpy, *_check_type(state, tuple))
            if numpy is not None and isinstance(instance, numpy.dtype):
                return _built_dtype(numpy, instance, _check_type(state, tuple))
        except (TypeError, ValueError, KeyError, ArithmeticError) as error:
            raise corrupt_value_error(f"a state of a {type(instance).__qualname__}: {error}") from error
        raise unsafe_value_error(
            f"{instance if type(instance) is Global else type(instance).__qualname__} with a state"
        )

    def is_rebuilt_by_state(self, instance: Any) -> bool:
        """Returns whether `set_state` returns another object."""
        return type(instance) is uuid.UUID or type(instance).__module__.partition(".")[0] == "numpy"

    def check_key(self, value: Any) -> Any:
        """Returns `value` if it is hashable. The time for the check is bounded by the file's size."""
        level = [value]
        for _ in range(_MAX_DEPTH):
            self.use_budget(len(level))
            level = [part for element in level if type(element) is tuple for part in element]
            if not level:
                try:
                    hash(value)
                except TypeError as error:
                    raise corrupt_value_error(str(error)) from error
                return value
        raise corrupt_value_error("a key is nested too deep")

    def use_budget(self, count: int) -> None:
        self._remaining_budget -= count
        if self._remaining_budget < 0:
            raise corrupt_value_error("its values are much larger than it is")

    def check_value(self, value: Any) -> Any:
        """Returns `value` if all its parts are plain. Raises SpecError otherwise."""
        visited, pending = {id(value)}, [value]
        while pending:
            for part in _child_values(pending.pop()):
                if type(part) not in _ATOMIC_TYPES and id(part) not in visited:
                    visited.add(id(part))
                    pending.append(part)
        return value

    # -- NumPy -----------------------------------------------------------------------------------------------

    def _array(self, numpy: Any, _version: Any, shape: Any, dtype: Any, fortran: Any, data: Any) -> Any:
        count = math.prod(_shape(shape))
        order = "F" if fortran else "C"
        if dtype == numpy.dtype(object):
            if len(_check_type(data, list)) != count:
                raise corrupt_value_error("an array of objects has the wrong number of elements")
            self.use_budget(count)
            array = numpy.empty(count, dtype=object)
            for index, element in enumerate(data):
                array[index] = element
            return array.reshape(shape, order=order)
        self.use_budget(len(_check_type(data, bytes)))
        return _array_view(numpy, bytearray(data), dtype, shape, order)


def _array_view(numpy: Any, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    size = math.prod(_shape(shape)) * plain_dtype(dtype).itemsize
    if type(data) not in (bytes, bytearray) or len(data) != size or order not in ("C", "F"):
        raise corrupt_value_error(f"the data does not match an array of {shape!r} {dtype}")
    return numpy.ndarray(shape, dtype, data, order=order)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(_size_of(extent) for extent in _check_type(value, tuple))


def _size_of(value: Any) -> int:
    if _check_type(value, int) < 0:
        raise ValueError(f"{value} is not a size")
    return value  # type: ignore[no-any-return]


def is_plain_dtype(dtype: Any) -> bool:
    """Returns whether the elements are only numbers, text and bytes, in a limited number of parts.

    Bytes from outside must never be interpreted as pointers to objects. Nested parts that are shared can make
    the number of parts exponential.
    """
    import numpy

    pending, count = [dtype], 0
    while pending:
        part, count = pending.pop(), count + 1
        if (
            not isinstance(part, numpy.dtype)
            or part.kind not in _PLAIN_DTYPE_KINDS
            or part.hasobject
            or part.isbuiltin == 2
            or count > _MAX_PARTS
        ):
            return False
        pending += (
            [part.base] if part.subdtype is not None else [field[0] for field in (part.fields or {}).values()]
        )
    return True


def plain_dtype(dtype: Any) -> Any:
    if not is_plain_dtype(dtype):
        raise unsafe_value_error(
            f"array of {dtype if type(dtype) in (str, Global) else type(dtype).__qualname__}"
        )
    return dtype


def _reconstruct(_: SafeValues, kind: Any, *_shape_and_code: Any) -> Any:
    """Returns an array without elements; `set_state` builds the real one."""
    import numpy

    if kind != Global("numpy", "ndarray"):
        raise unsafe_value_error(str(kind))
    return numpy.empty(0, dtype="b")


def _from_buffer(_: SafeValues, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    import numpy

    return _array_view(numpy, data, dtype, shape, order)


def _scalar(values: SafeValues, dtype: Any, data: Any) -> Any:
    import numpy

    values.use_budget(len(_check_type(data, bytes)))
    return _array_view(numpy, bytearray(data), dtype, (), "C")[()]


def _dtype(_: SafeValues, text: Any, *_align_and_copy: Any) -> Any:
    """Returns a new object in each call, since `set_state` replaces only that one."""
    import numpy

    if _DTYPE.fullmatch(_check_type(text, str)) is None:
        raise corrupt_value_error(f"{text!r} is not a dtype")
    parsed = numpy.dtype(numpy.dtype(text), copy=True)
    return parsed if parsed == numpy.dtype(object) else plain_dtype(parsed)


def _built_dtype(numpy: Any, instance: Any, state: tuple[Any, ...]) -> Any:
    """Reads the state as `dtype.__setstate__` does; after the flags only the unit of times is read."""
    _, order, sub, names, fields, size, _, flags, *more = state
    if _check_type(order, str) not in ("<", ">", "=", "|"):
        raise corrupt_value_error(f"{order!r} is not a byte order")
    if instance.kind == "O":
        return numpy.dtype(object)
    if sub is not None:
        base, shape = _check_type(sub, tuple)
        return numpy.dtype((plain_dtype(base), _shape(shape)))
    if names is not None:
        parts = [
            _check_type(_check_type(fields, dict)[_check_type(name, str)], tuple)
            for name in _check_type(names, tuple)
        ]
        description: dict[str, Any] = {
            "names": list(names),
            "formats": [plain_dtype(part[0]) for part in parts],
            "itemsize": _check_type(size, int),
        }
        description["offsets"] = [_check_type(part[1], int) for part in parts]
        if any(len(part) > 2 for part in parts):
            description["titles"] = [_check_type(part[2], str) if len(part) > 2 else None for part in parts]
        return plain_dtype(numpy.dtype(description, align=bool(_check_type(flags, int) & _ALIGNMENT)))
    if instance.kind in "mM" and more:
        unit, number = _check_type(_check_type(more[0], tuple)[1], tuple)[:2]
        name = _check_type(unit, bytes).decode()
        if _UNIT.fullmatch(name) is None:
            raise corrupt_value_error(f"{name!r} is not a unit of time")
        instance = numpy.dtype(
            f"{instance.kind}8" + (f"[{_check_type(number, int)}{name}]" if name != "generic" else "")
        )
    return plain_dtype(instance.newbyteorder(order))


# -- PyTorch -------------------------------------------------------------------------------------------------


def _storage(values: SafeValues, data: Any) -> Any:
    """Returns the memory of a tensor, read by PyTorch's own reader of weights and by no other."""
    import torch

    values.use_budget(len(_check_type(data, bytes)))
    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if type(storage) is not torch.storage.TypedStorage:
        raise unsafe_value_error(type(storage).__qualname__)
    return storage


def _tensor(
    _: SafeValues,
    storage: Any,
    offset: Any,
    size: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any = None,
    metadata: Any = None,
) -> Any:
    """Builds a tensor. PyTorch enlarges a storage for a tensor that does not fit into it; here such a tensor
    is rejected."""
    import torch

    if metadata is not None or hooks:
        raise unsafe_value_error("tensor with hooks or metadata")
    if type(storage) is not torch.storage.TypedStorage or len(_shape(size)) != len(_shape(strides)):
        raise corrupt_value_error("the parts of a tensor do not match")
    end = (
        _check_type(offset, int)
        + sum((extent - 1) * stride for extent, stride in zip(size, strides, strict=True))
        + 1
    )
    if offset < 0 or (0 not in size and end > storage._size()):
        raise corrupt_value_error("a tensor is larger than its storage")
    try:
        return torch._utils._rebuild_tensor_v2(
            storage, offset, tuple(size), tuple(strides), requires_grad is True, collections.OrderedDict()
        )
    except RuntimeError as error:
        raise corrupt_value_error(f"a tensor: {error}") from error


def _parameter(_: SafeValues, data: Any, requires_grad: Any, hooks: Any = None) -> Any:
    import torch

    if type(data) is not torch.Tensor or hooks:
        raise unsafe_value_error("parameter with hooks")
    return torch.nn.Parameter(data, requires_grad=requires_grad is True)


def _size(_: SafeValues, sizes: Any) -> Any:
    import torch

    return torch.Size(_shape(sizes))


def _device(_: SafeValues, kind: Any, index: Any = None) -> Any:
    import torch

    try:
        return (
            torch.device(_check_type(kind, str))
            if index is None
            else torch.device(_check_type(kind, str), _check_type(index, int))
        )
    except RuntimeError as error:
        raise corrupt_value_error(f"a device: {error}") from error


# -- the standard library ------------------------------------------------------------------------------------


def _check_type(value: Any, kind: type[Any]) -> Any:
    """Returns `value` if its type is exactly `kind`: subclasses have methods of their own. Raises
    TypeError."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__qualname__}, got {type(value).__qualname__}")
    return value


def _with_attributes(instance: Any, attributes: dict[Any, Any]) -> Any:
    for name in attributes:
        if hasattr(collections.OrderedDict, _check_type(name, str)):
            raise unsafe_value_error(f"OrderedDict with `{name}` of its own")
    vars(instance).update(attributes)
    return instance


def _keys(values: SafeValues, elements: Any) -> list[Any]:
    values.use_budget(len(_check_type(elements, list)))
    return [values.check_key(element) for element in elements]


def _counter(values: SafeValues, counts: Any = None) -> Any:
    counter: Any = collections.Counter()
    if counts is not None:
        values.use_budget(len(_check_type(counts, dict)))
        dict.update(counter, counts)
    return counter


def _default_dict(_: SafeValues, factory: Any = None) -> Any:
    if factory is not None and factory not in _FACTORIES:
        raise unsafe_value_error(
            f"defaultdict of {factory if type(factory) is Global else type(factory).__qualname__}"
        )
    return collections.defaultdict(None if factory is None else _FACTORIES[factory])


def _deque(_: SafeValues, elements: Any = None, limit: Any = None) -> Any:
    """Returns an empty deque; its elements are appended afterwards."""
    if type(elements) not in (type(None), list, tuple) or elements:
        raise corrupt_value_error("a deque is created with elements")
    return collections.deque(maxlen=limit if limit is None else _check_type(limit, int))


def _bytearray(values: SafeValues, data: Any = b"") -> Any:
    values.use_budget(len(_check_type(data, bytes)))
    return bytearray(data)


def _fraction(_: SafeValues, numerator: Any, denominator: Any = 1) -> Any:
    if type(numerator) is str:
        if _NUMBER.fullmatch(numerator) is None:
            raise corrupt_value_error("it is not a fraction")
        return fractions.Fraction(numerator)
    return fractions.Fraction(_check_type(numerator, int), _check_type(denominator, int))


def _datetime_factory(kind: Any) -> Callable[..., Any]:
    def make(_: SafeValues, data: Any, zone: Any = None) -> Any:
        arguments = (
            (_check_type(data, bytes),)
            if zone is None
            else (_check_type(data, bytes), _check_type(zone, datetime.timezone))
        )
        return kind(*arguments).replace()  # validates each part; the constructor hardly checks the bytes

    return make


def _timezone(_: SafeValues, offset: Any, *name: Any) -> Any:
    return datetime.timezone(
        _check_type(offset, datetime.timedelta), *(_check_type(text, str) for text in name)
    )


def _constructor(factory: Callable[..., Any], kind: type[Any]) -> Callable[..., Any]:
    """Returns a function that calls `factory` with arguments of type `kind` only. Its result is no larger
    than the arguments."""

    def call(_: SafeValues, *arguments: Any) -> Any:
        return factory(*(_check_type(argument, kind) for argument in arguments))

    return call


def _new(_: SafeValues, kind: Any) -> Any:
    if kind != Global("uuid", "UUID"):
        raise unsafe_value_error(str(kind) if type(kind) is Global else type(kind).__qualname__)
    return uuid.UUID(int=0)  # `set_state` builds the real one


NEWOBJ = Global("copyreg", "__newobj__")
# the names in NumPy 2
_RENAMED_MODULES = {
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}
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
# may only be arguments
_ALLOWED_GLOBALS = frozenset({*_FACTORIES, Global("numpy", "ndarray"), Global("uuid", "UUID")})
_BUILDERS: dict[Global, Callable[..., Any]] = {
    NEWOBJ: _new,
    Global("builtins", "bytearray"): _bytearray,
    Global("builtins", "complex"): _constructor(complex, float),
    Global("builtins", "frozenset"): lambda values, elements: frozenset(_keys(values, elements)),
    Global("builtins", "range"): _constructor(range, int),
    Global("builtins", "set"): lambda values, elements: set(_keys(values, elements)),
    Global("builtins", "slice"): lambda _, *parts: slice(*parts),
    Global("collections", "Counter"): _counter,
    Global("collections", "OrderedDict"): lambda _: collections.OrderedDict(),
    Global("collections", "defaultdict"): _default_dict,
    Global("collections", "deque"): _deque,
    Global("datetime", "date"): _datetime_factory(datetime.date),
    Global("datetime", "datetime"): _datetime_factory(datetime.datetime),
    Global("datetime", "time"): _datetime_factory(datetime.time),
    Global("datetime", "timedelta"): _constructor(datetime.timedelta, int),
    Global("datetime", "timezone"): _timezone,
    Global("decimal", "Decimal"): _constructor(decimal.Decimal, str),
    Global("fractions", "Fraction"): _fraction,
    Global("numpy", "dtype"): _dtype,
    Global("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    Global("numpy.core.multiarray", "scalar"): _scalar,
    Global("numpy.core.numeric", "_frombuffer"): _from_buffer,
    Global("pathlib", "PosixPath"): _constructor(pathlib.Path, str),
    Global("pathlib", "PurePosixPath"): _constructor(pathlib.PurePosixPath, str),
    Global("torch", "Size"): _size,
    Global("torch", "device"): _device,
    Global("torch._utils", "_rebuild_parameter"): _parameter,
    Global("torch._utils", "_rebuild_tensor_v2"): _tensor,
    Global("torch.storage", "_load_from_bytes"): _storage,
}


def _child_values(value: Any) -> Iterable[Any]:
    """Returns the parts of a value. Raises SpecError if it is not plain."""
    kind = type(value)
    if kind in _ATOMIC_TYPES:
        return ()
    if kind in _SEQUENCE_TYPES:
        return value  # type: ignore[no-any-return]
    if kind in MAPPING_TYPES:
        return [*value.keys(), *value.values(), *getattr(value, "__dict__", {}).values()]
    if kind is slice:
        return value.start, value.stop, value.step
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and kind is numpy.ndarray:
        return value.ravel().tolist() if value.dtype.hasobject else ()
    if numpy is not None and isinstance(value, (numpy.generic, numpy.dtype)):
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
    raise unsafe_value_error(str(value) if kind is Global else f"{kind.__module__}.{kind.__qualname__}")
