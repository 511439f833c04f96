"""Pictures as arrays, through Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.errors import SpecError

SAMPLE_IMAGES = 16
_GREY_MODES = ("1", "L", "LA", "La")


def decode_image(data: bytes | Path, name: str, *, grey: bool) -> Array:
    """(height, width, 3) of uint8, or (height, width) where `grey`; pictures of 16 bits keep them.
    Raises SpecError."""
    try:
        with _open_image(data) as picture:
            if picture.mode.startswith("I;16") or picture.mode in ("I", "F"):
                return np.asarray(picture)
            return np.asarray(picture.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError) as bad:
        raise _unreadable_image_error(name, bad) from bad


def inspect_image(data: bytes | Path, name: str) -> tuple[bool, int]:
    """Whether it is grey, and its number of points. Reads its header only. Raises SpecError."""
    try:
        with _open_image(data) as picture:
            return picture.mode in _GREY_MODES, picture.width * picture.height
    except (OSError, ValueError, SyntaxError) as bad:
        raise _unreadable_image_error(name, bad) from bad


def _open_image(data: bytes | Path) -> Any:
    try:
        from PIL import Image
    except ImportError as lacking:
        raise SpecError(
            "Pillow is not installed in this interpreter; images are read with it",
            hints=("pip install pillow",),
        ) from lacking
    return Image.open(data if isinstance(data, Path) else io.BytesIO(data))


def _unreadable_image_error(name: str, error: Exception) -> SpecError:
    reason = "no picture" if type(error).__name__ == "UnidentifiedImageError" else str(error)
    return SpecError(
        f"the image `{name}` cannot be read: {reason}",
        hints=("remove it or repair it, and push the dataset again",),
    )
