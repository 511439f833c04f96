"""Converts images, tables and other media of Weights & Biases to those of `hop.log`."""

from __future__ import annotations

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def copy_nested(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns a copy with copies of the nested dicts, in which wandb replaces media by their descriptions."""
    return {name: copy_nested(value) if isinstance(value, dict) else value for name, value in values.items()}


def convert_media(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns the values with media of wandb as media of Hopyard. Other values stay, also nested ones."""
    return {
        name: convert_media(value) if isinstance(value, dict) else _convert(value)
        for name, value in values.items()
    }


def _convert(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and value and all(map(_is_wandb_value, value)):
        items = [_to_media(item) for item in value]
        return value if any(item is None for item in items) else items
    if not _is_wandb_value(value):
        return value
    return _to_media(value) or value


def _is_wandb_value(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "wandb"


def _to_media(value: Any) -> Any:
    """Returns the value as media of Hopyard; None for a class without such a form."""
    import hopyard

    kind, path, caption = (
        type(value).__name__,
        getattr(value, "_path", None),
        getattr(value, "_caption", None),
    )
    if kind == "Image":
        return hopyard.Image(path or value.image, caption=caption)
    if kind == "Audio" and path:
        return hopyard.Audio(path, caption=caption)
    if kind == "Video" and path:
        return hopyard.Video(path, caption=caption)
    if kind == "Histogram":
        return hopyard.Histogram(counts=value.histogram, edges=value.bins)
    if kind == "Table":
        return hopyard.Table(value.data, columns=value.columns)
    if kind == "Html":
        return hopyard.Text(value.html, caption=caption)
    return None
