"""Selects the input columns and the target column of a model."""

from __future__ import annotations

from hopyard.datasets.partitions.name_errors import shortened_list
from hopyard.datasets.partitions.partition import Partition
from hopyard.errors import SpecError

TARGET_COLUMNS = ("y", "label", "labels", "target", "cls", "class")
INPUT_COLUMNS = ("x", "image", "images", "features", "jpg", "jpeg", "png", "text", "txt")
Inputs = str | tuple[str, ...]


def select_columns(partition: Partition, inputs: Inputs | None, target: str | None) -> Partition:
    """Returns a view with columns x and y: the named columns, else columns with standard names, else (x) all
    columns except y as one matrix. Raises SpecError if none of these applies."""
    columns = partition.columns
    y = target or next((name for name in TARGET_COLUMNS if name in columns), None)
    if y is None:
        hint = f"set target=…; the data has {shortened_list(columns)}"
        raise SpecError(
            "which column is the target?",
            hints=(hint, "or set a `transform` that returns inputs and targets of a batch"),
        )
    x: Inputs | None = tuple(inputs) if isinstance(inputs, list) else inputs
    x = (
        x
        or next((name for name in INPUT_COLUMNS if name in columns and name != y), None)
        or tuple(name for name in columns if name != y)
    )
    if not x:
        raise SpecError(f"there is no column beside `{y}` to learn from", hints=("set inputs=…",))
    return partition.view(x=x, y=y)
