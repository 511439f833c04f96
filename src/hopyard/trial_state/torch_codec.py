"""Tensors of PyTorch in an encoded state: of any device and dtype, decoded on the CPU. PyTorch is imported
only to decode them."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from hopyard.errors import IntegrityError
from hopyard.trial_state import state_format
from hopyard.trial_state.buffers import Buffer, ValueReader, ValueWriter


def write_torch(writer: ValueWriter, value: Any) -> bool:
    """Writes a tensor or a constant of PyTorch and returns True; returns False for other values.

    Special tensors (sparse, quantised, subclasses) are written as objects that consist of plain ones.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _write_tensor(writer, torch, value)
    if kind in (torch.dtype, torch.layout, torch.memory_format, torch.qscheme):
        writer.head += state_format.TORCH_WORD
        writer.append_text(str(value).removeprefix("torch."))
        return True
    return False


def _write_tensor(writer: ValueWriter, torch: Any, value: Any) -> bool:
    if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
        return False
    # A state_dict() returns new objects with the same memory: tied weights are recognized by their address.
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
    if writer.write_reference(value, key):
        return True
    plain = value.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    stored_strides = _stored_strides(plain, size, strides)
    if stored_strides is None:
        plain, stored_strides = plain.contiguous(), ()
    writer.head += state_format.TENSOR
    writer.append_text(str(plain.dtype).removeprefix("torch."))
    writer.write_length(len(size))
    for number in size:
        writer.write_length(number)
    writer.head.append(
        (1 if wants_grad else 0)
        | (2 if is_parameter else 0)
        | (4 if stored_strides else 0)
        | (8 if _attributes(value) else 0)
    )
    for number in stored_strides:
        writer.write_length(number)
    size_bytes = numel * plain.element_size()
    if plain.device.type == "cpu":
        writer.write_buffer(Buffer(size_bytes, plain, address=plain.data_ptr()))
    else:
        writer.write_buffer(_from_device(torch, plain, stored_strides or plain.stride(), size_bytes))
    if _attributes(value):
        writer.write_part(".__dict__", dict(vars(value)))
    return True


def _attributes(value: Any) -> bool:
    return bool(getattr(value, "__dict__", None))


def _stored_strides(value: Any, size: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns () for the default order, otherwise the strides (`channels_last` decides the order of additions
    in a convolution); None if it has gaps or overlaps."""
    contiguous = value.is_contiguous()
    if contiguous and (1 not in size or not value.numel() or strides == _contiguous_strides(size)):
        return ()
    expected = 1
    for stride, extent in sorted(
        (stride, extent) for stride, extent in zip(strides, size, strict=True) if extent != 1
    ):
        if stride != expected:
            return None
        expected *= extent
    return strides


def _contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for extent in reversed(size):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def _from_device(torch: Any, value: Any, strides: tuple[int, ...], size: int) -> Buffer:
    def fill(view: memoryview) -> None:
        if size:
            torch.frombuffer(view, dtype=value.dtype).as_strided(value.shape, strides).copy_(value)

    return Buffer(size, value, fill=fill)


@cache
def _constant(name: str) -> Any:
    import torch

    constant = getattr(torch, name, None)
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format | torch.qscheme):
        raise IntegrityError(f"a state is damaged: PyTorch has no `{name}`")
    return constant


def read_constant(reader: ValueReader) -> Any:
    return _constant(reader.read_text())


def read_tensor(reader: ValueReader) -> Any:
    import torch

    number = reader.add_reference(None)
    dtype = _constant(reader.read_text())
    size = [reader.read_length() for _ in range(reader.read_length())]
    flags = reader.read_byte()
    strides = [reader.read_length() for _ in size] if flags & 4 else None
    count = 1
    for extent in size:
        count *= extent
    data = reader.read_buffer(count * dtype.itemsize)
    value = torch.frombuffer(data, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
    value = value.view(size) if strides is None else value.as_strided(size, strides)
    if flags & 2:
        value = torch.nn.Parameter(value, requires_grad=bool(flags & 1))
    elif flags & 1:
        value.requires_grad_(True)
    reader.replace_reference(number, value)
    if flags & 8:
        attributes = reader.read()
        if not isinstance(attributes, dict) or not all(isinstance(name, str) for name in attributes):
            raise IntegrityError("a state is damaged: attribute names of a tensor are not text")
        vars(value).update(attributes)
    return value
