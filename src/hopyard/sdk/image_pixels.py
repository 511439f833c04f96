"""Converts images of any library into rows of 8-bit pixels, and those into PNG."""

from __future__ import annotations

import io
from typing import Any

from hopyard.backports import dataclass
from hopyard.errors import SpecError
from hopyard.sdk.array_values import (
    clip_to_bytes,
    flatten,
    is_array,
    is_tensor,
    list_to_bytes,
    nested_shape,
    to_numpy,
)
from hopyard.sdk.png_encoder import encode_animated_png, encode_png

_CHANNELS = (1, 3, 4)
_MAX_PIXELS = 64 * 2**20
_PIL_MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "I;16")
_SHAPES = "(height, width), (height, width, 1, 3 or 4) or (1, 3 or 4, height, width)"


@dataclass(frozen=True, slots=True)
class Pixels:
    """One image of `height` rows with `width * channels` bytes each. channels: 1, 3 or 4."""

    width: int
    height: int
    channels: int
    data: bytes

    def to_png(self) -> bytes:
        return encode_png(self.width, self.height, self.channels, self.data)


def is_pil_image(data: object) -> bool:
    return all(hasattr(data, name) for name in ("save", "mode", "size", "convert"))


def is_figure(data: object) -> bool:
    """Returns whether this is a figure of matplotlib, its pyplot module, or axes."""
    return hasattr(data, "savefig") or hasattr(getattr(data, "figure", None), "savefig")


def figure_to_png(figure: Any) -> bytes:
    """Returns the PNG of a figure of matplotlib."""
    if not hasattr(figure, "savefig"):
        figure = figure.figure
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def pil_to_png(image: Any) -> bytes:
    """Returns the PNG of an image of PIL. A mode that PNG lacks is converted to RGB."""
    buffer = io.BytesIO()
    (image if image.mode in _PIL_MODES else image.convert("RGB")).save(buffer, format="PNG")
    return buffer.getvalue()


def png_size(data: bytes) -> tuple[int, int] | None:
    """Returns width and height of a PNG; None for another format."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def to_images(data: Any) -> list[Pixels]:
    """Returns the image of an array, tensor or nested list; several of an array with four dimensions. Raises
    SpecError for another shape."""
    if not is_array(data):
        return [_nested_image(data)]
    values = to_numpy(data)
    if values.ndim == 4:
        return [_array_image(image, prefer_first=is_tensor(data)) for image in values]
    return [_array_image(values, prefer_first=is_tensor(data))]


def to_animation(data: Any, fps: float) -> tuple[bytes, int, int, int]:
    """Returns the animated PNG of an array of frames, its width, height and number of frames."""
    if not is_array(data):
        data = [to_numpy(frame) if is_array(frame) else frame for frame in data]
    values = to_numpy(data)
    if values.ndim not in (3, 4) or not len(values):
        raise SpecError(f"a video of shape {tuple(values.shape)} has no frames of an image each")
    frames = [_array_image(frame, prefer_first=is_tensor(data)) for frame in values]
    first = frames[0]
    encoded = encode_animated_png(
        first.width, first.height, first.channels, [frame.data for frame in frames], fps
    )
    return encoded, first.width, first.height, len(frames)


def _array_image(values: Any, *, prefer_first: bool) -> Pixels:
    """prefer_first: of a shape with channels at both ends, the first ones are the channels."""
    shape = tuple(values.shape)
    if values.ndim == 2:
        values = values[:, :, None]
    elif values.ndim != 3:
        raise SpecError(f"an image of shape {shape}", hints=(f"its shape is {_SHAPES}",))
    elif shape[0] in _CHANNELS and (prefer_first or shape[2] not in _CHANNELS):
        values = values.transpose(1, 2, 0)
    height, width, channels = values.shape
    if channels not in _CHANNELS or not 0 < height * width <= _MAX_PIXELS:
        raise SpecError(f"an image of shape {shape}", hints=(f"its shape is {_SHAPES}",))
    return Pixels(width, height, channels, clip_to_bytes(values).tobytes())


def _nested_image(data: Any) -> Pixels:
    shape = nested_shape(data)
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in _CHANNELS) or 0 in shape:
        what = f"nested lists of shape {shape}" if shape else f"a {type(data).__name__}"
        raise SpecError(f"{what} is not an image", hints=(f"the shape of an array is {_SHAPES}",))
    return Pixels(shape[1], shape[0], shape[2] if len(shape) == 3 else 1, list_to_bytes(flatten(data)))
