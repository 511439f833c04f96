"""What may be made of another user's bytes without asking: tensors, arrays and plain values. Everything else runs code that its
author chose. Standard library only; frameworks are looked up where the bytes need them."""

from __future__ import annotations

import importlib
import pickle
from typing import IO, Any

from hopyard.errors import SpecError

_BUILTINS = ("bool", "complex", "dict", "float", "frozenset", "int", "list", "range", "set", "slice", "str", "tuple")
_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_TORCH = ("_rebuild_tensor_v2", "_rebuild_tensor", "_rebuild_parameter", "_rebuild_sparse_tensor", "_rebuild_qtensor")
# Classes and functions that only make values of their arguments.
PLAIN: frozenset[tuple[str, str]] = frozenset(
    {
        *(("builtins", name) for name in _BUILTINS),
        *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *((module, name) for module in _NUMPY for name in ("_reconstruct", "scalar", "_frombuffer")),
        *(("numpy", name) for name in ("ndarray", "dtype")),
        *(("torch._utils", name) for name in _TORCH),
        *(("torch", name) for name in ("Size", "device")),
        ("torch.nn.parameter", "Parameter"),
        ("copyreg", "__newobj__"),
        ("copyreg", "_reconstructor"),
        ("builtins", "object"),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        ("uuid", "UUID"),
    }
)


def plain_global(module: str, name: str) -> Any:
    """The class or function of this name. Raises SpecError where it is none of those that make plain values."""
    if (module, name) not in PLAIN:
        raise not_plain(f"{module}.{name}")
    return getattr(importlib.import_module(module), name)


def not_plain(what: str) -> SpecError:
    return SpecError(
        f"it holds a `{what}`, which is no tensor, array or plain value; to read it would run code of another user",
        hints=("where you trust its author: `trust=True` reads all of it, and `--trust` of `hop fork` and `hop search resume` starts a run from it",),
    )


def load_plain(file: IO[bytes]) -> Any:
    """As `pickle.load`. Raises SpecError for what is not plain."""
    return _Unpickler(file).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        return plain_global(module, name)


def _storage(data: bytes) -> Any:
    """The memory of a tensor: PyTorch's own function would unpickle whatever is in it."""
    import io

    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
