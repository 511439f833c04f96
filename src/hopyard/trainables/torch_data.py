"""Converts batches of a partition to tensors."""

from __future__ import annotations

from typing import Any

from hopyard.datasets.partitions.arrays import Array, np


def as_tensor(array: Array, device: Any) -> Any:
    """Returns numbers as a tensor on the device, 64-bit floats as 32-bit; other values unchanged."""
    import torch

    if array.dtype.kind not in "biuf":
        return array
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def move_to_device(value: Any, device: Any) -> Any:
    """Returns a nested value on the device; lists become tuples, as models expect them."""
    if isinstance(value, list | tuple):
        return tuple(move_to_device(element, device) for element in value)
    if isinstance(value, dict):
        return {name: move_to_device(element, device) for name, element in value.items()}
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value


def as_inputs(value: Any) -> Any:
    """Returns images of bytes, (rows, height, width) or (rows, height, width, channels), as (rows, channels,
    height, width) from 0 to 1; other bytes as floats; other values unchanged."""
    import torch

    if not torch.is_tensor(value) or value.dtype != torch.uint8:
        return value
    if value.dim() == 3:
        value = value.unsqueeze(1)
    elif value.dim() == 4 and value.shape[-1] in (1, 3, 4):
        value = value.permute(0, 3, 1, 2)
    else:
        return value.float()
    return value.contiguous().float().div_(255)


def as_targets(value: Any) -> Any:
    """Returns integers as the class indices that losses require."""
    import torch

    is_integer = torch.is_tensor(value) and value.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
    return value.long() if is_integer else value


def accuracy(outputs: Any, targets: Any) -> Any:
    """Returns the share of rows whose class has the highest score; for one score per row, the share with the
    correct sign."""
    predicted = (
        outputs.argmax(1) if outputs.dim() > 1 and outputs.shape[1] > 1 else (outputs.reshape(-1) > 0).long()
    )
    return (predicted == targets.reshape(-1) if predicted.dim() == 1 else predicted == targets).float().mean()


def absolute_error(outputs: Any, targets: Any) -> Any:
    return (outputs.reshape(targets.shape) - targets).abs().float().mean()


def squared_error(outputs: Any, targets: Any) -> Any:
    return (outputs.reshape(targets.shape) - targets).square().float().mean()


METRICS = {"accuracy": accuracy, "mae": absolute_error, "mse": squared_error}
