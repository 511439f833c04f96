"""Pictures as arrays, through Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.errors import SpecError

SAMPLES = 16
_GREY = ("1", "L", "LA", "La")


def decoded(data: bytes | Path, name: str, *, grey: bool) -> Array:
    """(height, width, 3) of uint8, or (height, width) where `grey`; pictures of 16 bits keep them.
    Raises SpecError."""
    try:
        with _open(data) as picture:
            if picture.mode.startswith("I;16") or picture.mode in ("I", "F"):
                return np.asarray(picture)
            return np.asarray(picture.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError) as bad:
        raise _broken(name, bad) from bad


def look(data: bytes | Path, name: str) -> tuple[bool, int]:
    """Whether it is grey, and its number of points. Reads its header only. Raises SpecError."""
    try:
        with _open(data) as picture:
            return picture.mode in _GREY, picture.width * picture.height
    except (OSError, ValueError, SyntaxError) as bad:
        raise _broken(name, bad) from bad


def _open(data: bytes | Path) -> Any:
    try:
        from PIL import Image
    except ImportError as lacking:
        raise SpecError(
            "Pillow is not installed in this interpreter; images are read with it",
            hints=("pip install pillow",),
        ) from lacking
    return Image.open(data if isinstance(data, Path) else io.BytesIO(data))


def _broken(name: str, bad: Exception) -> SpecError:
    reason = "no picture" if type(bad).__name__ == "UnidentifiedImageError" else str(bad)
    return SpecError(
        f"the image `{name}` cannot be read: {reason}",
        hints=("remove it or repair it, and push the dataset again",),
    )
