"""Tensors of PyTorch in an encoded state: of any device and dtype, read again on the CPU.
PyTorch is never imported here."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from hopyard.errors import IntegrityError
from hopyard.studies.states import tags
from hopyard.studies.states.leaf import Leaf, Reader, Writer


def write(writer: Writer, value: Any) -> bool:
    """Whether it was a tensor, or a word of PyTorch. Tensors of kinds of their own (sparse, quantised,
    subclasses) are objects like any other, made of plain ones."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _write_tensor(writer, torch, value)
    if kind in (torch.dtype, torch.layout, torch.memory_format, torch.qscheme):
        writer.head += tags.TORCH_WORD
        writer.text(str(value).removeprefix("torch."))
        return True
    return False


def _write_tensor(writer: Writer, torch: Any, value: Any) -> bool:
    if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
        return False
    # A state_dict() gives new objects over the same memory: tied weights are known by where they lie.
    size, strides = tuple(value.shape), value.stride()
    wants_grad = value.requires_grad and value.is_leaf
    is_parameter = type(value) is torch.nn.Parameter
    numel = value.numel()
    key = None
    if not is_parameter and numel:
        key = (
            value.data_ptr(),
            str(value.device),
            value.dtype,
            size,
            strides,
            wants_grad,
            value.is_conj() or value.is_neg(),
        )
    if writer.occurs_again(value, key):
        return True
    plain = value.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    kept = _kept_strides(plain, size, strides)
    if kept is None:
        plain, kept = plain.contiguous(), ()
    writer.head += tags.TENSOR
    writer.text(str(plain.dtype).removeprefix("torch."))
    writer.length(len(size))
    for one in size:
        writer.length(one)
    writer.head.append(
        (1 if wants_grad else 0)
        | (2 if is_parameter else 0)
        | (4 if kept else 0)
        | (8 if _attributes(value) else 0)
    )
    for one in kept:
        writer.length(one)
    bytes_ = numel * plain.element_size()
    if plain.device.type == "cpu":
        writer.leaf(Leaf(bytes_, plain, address=plain.data_ptr()))
    else:
        writer.leaf(_from_device(torch, plain, kept or plain.stride(), bytes_))
    if _attributes(value):
        writer.inside(".__dict__", dict(vars(value)))
    return True


def _attributes(value: Any) -> bool:
    return bool(getattr(value, "__dict__", None))


def _kept_strides(value: Any, size: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """() where it lies in the usual order; else its strides (`channels_last` decides what a convolution adds
    up first); None where it has gaps or overlaps."""
    contiguous = value.is_contiguous()
    if contiguous and (1 not in size or not value.numel() or strides == _usual(size)):
        return ()
    expected = 1
    for stride, extent in sorted(
        (stride, extent) for stride, extent in zip(strides, size, strict=True) if extent != 1
    ):
        if stride != expected:
            return None
        expected *= extent
    return strides


def _usual(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for extent in reversed(size):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def _from_device(torch: Any, value: Any, strides: tuple[int, ...], size: int) -> Leaf:
    def fill(view: memoryview) -> None:
        if size:
            torch.frombuffer(view, dtype=value.dtype).as_strided(value.shape, strides).copy_(value)

    return Leaf(size, value, fill=fill)


@cache
def _word(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format | torch.qscheme):
        raise IntegrityError(f"a state is damaged: PyTorch has no `{name}`")
    return found


def read_word(reader: Reader) -> Any:
    return _word(reader.text())


def read(reader: Reader) -> Any:
    import torch

    number = reader.remember(None)
    dtype = _word(reader.text())
    size = [reader.length() for _ in range(reader.length())]
    flags = reader.byte()
    strides = [reader.length() for _ in size] if flags & 4 else None
    count = 1
    for one in size:
        count *= one
    data = reader.leaf(count * dtype.itemsize)
    value = torch.frombuffer(data, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
    value = value.view(size) if strides is None else value.as_strided(size, strides)
    if flags & 2:
        value = torch.nn.Parameter(value, requires_grad=bool(flags & 1))
    elif flags & 1:
        value.requires_grad_(True)
    reader.replace(number, value)
    if flags & 8:
        attributes = reader.read()
        if not isinstance(attributes, dict) or not all(isinstance(name, str) for name in attributes):
            raise IntegrityError("a state is damaged: attributes of a tensor have no names")
        vars(value).update(attributes)
    return value
