"""Batches of a partition as tensors."""

from __future__ import annotations

from typing import Any

from hopyard.datasets.partitions.arrays import Array, np


def as_tensor(array: Array, device: Any) -> Any:
    """Numbers as a tensor on the device, floats of 64 bits as 32; everything else as it is."""
    import torch

    if array.dtype.kind not in "biuf":
        return array
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def move_to_device(value: Any, device: Any) -> Any:
    """The same on the device, whatever it is made of; lists as tuples, as models take them."""
    if isinstance(value, list | tuple):
        return tuple(move_to_device(one, device) for one in value)
    if isinstance(value, dict):
        return {name: move_to_device(one, device) for name, one in value.items()}
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value


def as_inputs(value: Any) -> Any:
    """Pictures of whole numbers, (rows, height, width) or (rows, height, width, channels), as (rows,
    channels, height, width) from 0 to 1; other bytes as floats; everything else as it is."""
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

    whole = torch.is_tensor(value) and value.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
    return value.long() if whole else value


def accuracy(outputs: Any, targets: Any) -> Any:
    """Returns the share of rows whose class has the highest score; for one score per row, the share with the
    correct sign."""
    chosen = (
        outputs.argmax(1) if outputs.dim() > 1 and outputs.shape[1] > 1 else (outputs.reshape(-1) > 0).long()
    )
    return (chosen == targets.reshape(-1) if chosen.dim() == 1 else chosen == targets).float().mean()


def absolute_error(outputs: Any, targets: Any) -> Any:
    return (outputs.reshape(targets.shape) - targets).abs().float().mean()


def squared_error(outputs: Any, targets: Any) -> Any:
    return (outputs.reshape(targets.shape) - targets).square().float().mean()


METRICS = {"accuracy": accuracy, "mae": absolute_error, "mse": squared_error}
