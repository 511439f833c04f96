"""The values of `hop.log` beside numbers: images, audio, video, histograms, tables, texts and figures.

A value is encoded when it is logged, so that the script may change its data afterwards. Array libraries are
only used for data of theirs.
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hopyard.domain.media import JSON_TYPE, TEXT_TYPE, EncodedMedia, MediaKind
from hopyard.errors import SpecError
from hopyard.sdk.array_values import (
    flatten,
    is_array,
    list_to_samples,
    nested_shape,
    to_numpy,
    to_samples,
)
from hopyard.sdk.histogram_counts import count_values, given_counts
from hopyard.sdk.image_pixels import (
    figure_to_png,
    is_figure,
    is_pil_image,
    pil_to_png,
    png_size,
    to_animation,
    to_images,
)
from hopyard.sdk.media_files import find_type, read_file
from hopyard.sdk.table_values import read_table

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_AUDIO_TYPES = ("audio/wav", "audio/flac", "audio/ogg", "audio/mpeg")
_VIDEO_TYPES = ("video/mp4", "video/webm", "image/gif")
_MAX_CHANNELS = 8  # of audio


class Media(ABC):
    """A value of `hop.log` that is not a number."""

    kind: MediaKind

    def __init__(self, data: Any, caption: str | None = None) -> None:
        self._data, self.caption = data, "" if caption is None else str(caption)

    @abstractmethod
    def encode(self) -> list[EncodedMedia]:
        """Returns the items of this value, usually one. Raises SpecError for unsuitable data."""

    def _encode_file(self, types: Sequence[str], what: str) -> EncodedMedia | None:
        """Returns the content of a file or of bytes; None for other data."""
        if isinstance(self._data, (str, os.PathLike)):
            data = read_file(self._data)
        elif isinstance(self._data, (bytes, bytearray, memoryview)):
            data = bytes(self._data)
        else:
            return None
        type_ = find_type(data, types, what=what)
        size = png_size(data)
        return EncodedMedia(type_, data, {} if size is None else {"width": size[0], "height": size[1]})


class Image(Media):
    """An image: an array or tensor, an image of PIL, a figure of matplotlib, a file, or bytes of a file.

    Arrays have the shape (height, width), (height, width, channels) or (channels, height, width) with 1, 3 or
    4 channels. A fourth dimension in front gives several images. Whole numbers are from 0 to 255, others from
    0 to 1.
    """

    kind = MediaKind.IMAGE

    def encode(self) -> list[EncodedMedia]:
        encoded = self._encode_file(_IMAGE_TYPES, "hop.Image")
        if encoded is not None:
            return [encoded]
        if is_pil_image(self._data):
            return [_encode_png(pil_to_png(self._data))]
        if is_figure(self._data):
            return [_encode_png(figure_to_png(self._data))]
        if isinstance(self._data, (list, tuple)) and any(is_array(x) or is_pil_image(x) for x in self._data):
            return [part for item in self._data for part in Image(item).encode()]
        return [_encode_png(image.to_png()) for image in to_images(self._data)]


class Figure(Media):
    """A figure of matplotlib, stored as PNG at the time of the call."""

    kind = MediaKind.FIGURE

    def encode(self) -> list[EncodedMedia]:
        if not is_figure(self._data):
            raise SpecError(
                f"hop.Figure takes a figure of matplotlib, not a {type(self._data).__name__}",
                hints=("pass other pictures to hop.Image",),
            )
        return [_encode_png(figure_to_png(self._data))]


class Audio(Media):
    """Audio: samples with a sample rate, a file, or bytes of a file (WAV, FLAC, Ogg, MP3).

    Samples are an array, a tensor or a list of numbers from -1 to 1, or whole numbers of 8 to 32 bits. Two
    dimensions are channels and time, in any order.
    """

    kind = MediaKind.AUDIO

    def __init__(self, data: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        super().__init__(data, caption)
        self._sample_rate = sample_rate

    def encode(self) -> list[EncodedMedia]:
        encoded = self._encode_file(_AUDIO_TYPES, "hop.Audio")
        if encoded is not None:
            return [encoded]
        rate = 0 if self._sample_rate is None else int(self._sample_rate)
        if not 0 < rate < 2**31:
            raise SpecError(
                "hop.Audio of samples needs their rate",
                hints=("write hop.Audio(samples, sample_rate=16000)",),
            )
        import wave

        channels, samples = _audio_samples(self._data)
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples)
        seconds = len(samples) / (2 * channels * rate)
        return [EncodedMedia("audio/wav", buffer.getvalue(), {"sample_rate": rate, "duration_s": seconds})]


class Video(Media):
    """A video: a file or bytes of a file (MP4, WebM, GIF), or an array of frames, which is stored as animated
    PNG."""

    kind = MediaKind.VIDEO

    def __init__(self, data: Any, fps: float = 10, caption: str | None = None) -> None:
        super().__init__(data, caption)
        self._fps = fps

    def encode(self) -> list[EncodedMedia]:
        encoded = self._encode_file(_VIDEO_TYPES, "hop.Video")
        if encoded is not None:
            return [encoded]
        if not 0 < self._fps <= 1000:
            raise SpecError(f"hop.Video: fps is {self._fps}", hints=("it is more than 0, and at most 1000",))
        data, width, height, frames = to_animation(self._data, self._fps)
        details = {"width": width, "height": height, "frames": frames, "duration_s": frames / self._fps}
        return [EncodedMedia("image/apng", data, details)]


class Histogram(Media):
    """The distribution of values: an array, a tensor or a list, counted in bins of equal width.

    counts, edges: of a histogram that was counted elsewhere, instead of values.
    """

    kind = MediaKind.HISTOGRAM

    def __init__(
        self,
        data: Any = None,
        bins: int = 64,
        caption: str | None = None,
        *,
        counts: Iterable[Any] | None = None,
        edges: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(data, caption)
        self._bins, self._counts, self._edges = bins, counts, edges

    def encode(self) -> list[EncodedMedia]:
        if self._counts is not None and self._edges is not None:
            counted = given_counts(self._counts, self._edges)
        elif self._data is None:
            raise SpecError("hop.Histogram has no values", hints=("pass values, or counts and edges",))
        else:
            counted = count_values(self._data, self._bins)
        return [EncodedMedia(JSON_TYPE, _to_json(counted), {"count": counted["count"]})]


class Table(Media):
    """A table: a DataFrame, a list of rows, a list of dicts, or a dict of columns. At most 10,000 rows are
    kept."""

    kind = MediaKind.TABLE

    def __init__(self, data: Any, columns: Sequence[str] | None = None, caption: str | None = None) -> None:
        super().__init__(data, caption)
        self._columns = columns

    def encode(self) -> list[EncodedMedia]:
        table = read_table(self._data, self._columns)
        details = {"rows": len(table["rows"]), "columns": len(table["columns"])}
        return [EncodedMedia(JSON_TYPE, _to_json(table), details)]


class Text(Media):
    """A text. Markdown and HTML are shown as they are written."""

    kind = MediaKind.TEXT

    def encode(self) -> list[EncodedMedia]:
        if not isinstance(self._data, str):
            raise SpecError(
                f"hop.Text takes a text, not a {type(self._data).__name__}", hints=("convert it with str()",)
            )
        return [
            EncodedMedia(TEXT_TYPE, self._data.encode("utf-8", "replace"), {"characters": len(self._data)})
        ]


def to_media_list(value: object) -> list[Media] | None:
    """Returns the media of a value of `hop.log`: one, or the panel of a list; None for any other value."""
    if isinstance(value, Media):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Media) for item in value):
        return list(value)
    return None


def _encode_png(data: bytes) -> EncodedMedia:
    width, height = png_size(data) or (0, 0)
    return EncodedMedia("image/png", data, {"width": width, "height": height})


def _audio_samples(data: Any) -> tuple[int, bytes]:
    """Returns the number of channels, and the samples of 16 bits, interleaved."""
    if not is_array(data):
        shape = nested_shape(data)
        if len(shape) != 1:
            raise SpecError(
                f"samples of shape {shape} in lists", hints=("pass an array for several channels",)
            )
        return 1, list_to_samples(flatten(data))
    values = to_numpy(data)
    shape = tuple(values.shape)
    if values.ndim == 2 and shape[0] < shape[1]:
        values = values.T
    elif values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not 0 < values.shape[1] <= _MAX_CHANNELS:
        raise SpecError(
            f"samples of shape {shape}",
            hints=(f"the shape is (time,) or (time, 1 to {_MAX_CHANNELS} channels)",),
        )
    return values.shape[1], to_samples(values).tobytes()


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
