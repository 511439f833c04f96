"""Decodes images to arrays with Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.errors import SpecError

SAMPLE_IMAGES = 16
_GREY_MODES = ("1", "L", "LA", "La")


def decode_image(data: bytes | Path, name: str, *, grey: bool) -> Array:
    """Returns (height, width, 3) of uint8, or (height, width) if `grey`. Images of 16 bits keep them. Raises
    SpecError."""
    try:
        with _open_image(data) as image:
            if image.mode.startswith("I;16") or image.mode in ("I", "F"):
                return np.asarray(image)
            return np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise _unreadable_image_error(name, error) from error


def inspect_image(data: bytes | Path, name: str) -> tuple[bool, int]:
    """Returns whether the image is grey, and its number of pixels. Reads the header only. Raises
    SpecError."""
    try:
        with _open_image(data) as image:
            return image.mode in _GREY_MODES, image.width * image.height
    except (OSError, ValueError, SyntaxError) as error:
        raise _unreadable_image_error(name, error) from error


def _open_image(data: bytes | Path) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise SpecError(
            "Pillow is not installed in this interpreter; it is needed to read images",
            hints=("pip install pillow",),
        ) from error
    return Image.open(data if isinstance(data, Path) else io.BytesIO(data))


def _unreadable_image_error(name: str, error: Exception) -> SpecError:
    reason = "not an image" if type(error).__name__ == "UnidentifiedImageError" else str(error)
    return SpecError(
        f"the image `{name}` cannot be read: {reason}",
        hints=("remove it or repair it, and push the dataset again",),
    )
