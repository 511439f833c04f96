"""Converts the images, histograms, audio, texts and hyperparameters of event files to those of `hop.log`.

Formats: tensorflow/core/framework/summary.proto, and the modules `metadata` of TensorBoard's plugins.
"""

from __future__ import annotations

import io
import json
import math
import struct
import wave
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from hopyard.domain.media import JSON_TYPE, MAX_PANEL_ITEMS, TEXT_TYPE, EncodedMedia, MediaKind
from hopyard.domain.metric_values import encode_value
from hopyard.errors import SpecError
from hopyard.replica.protobuf import Buffer, FieldLimit, WireType, decode_text, iterate_fields
from hopyard.replica.tensor_values import TensorTexts, numbers_of_tensor, texts_of_tensor
from hopyard.sdk.histogram_counts import given_counts
from hopyard.sdk.image_pixels import png_size
from hopyard.sdk.media_files import find_type
from hopyard.sdk.table_values import read_table

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_AUDIO_TYPES = ("audio/wav", "audio/flac", "audio/ogg", "audio/mpeg")
_MAX_BUCKETS = 10_000  # PyTorch writes up to 1549
_DOUBLE = struct.Struct("<d")
_IMAGE, _HISTOGRAM, _AUDIO, _TENSOR = 4, 5, 6, 8  # fields of `Summary.Value`
MAX_PARAM_TEXT = 1000

ParamValue = str | int | float | bool | None


class MediaContents(NamedTuple):
    """The items of one value, with a caption for each. omitted: how many items there are beside them."""

    kind: MediaKind
    items: Sequence[EncodedMedia]
    captions: Sequence[str] = ()
    omitted: int = 0


def convert(plugin: str, field: int, data: Buffer, budget: FieldLimit) -> MediaContents | None:
    """Returns the content of a value of a plugin; None for a form that TensorBoard does not show either.

    field: the number of the field of `Summary.Value` that contains the data. Raises SpecError for unsuitable
    data, and MalformedMessage.
    """
    converter = _CONVERTERS.get((plugin, field))
    return None if converter is None else converter(data, budget)


def hyperparameters(content: Buffer, budget: FieldLimit) -> dict[str, ParamValue]:
    """Returns the hyperparameters in the `HParamsPluginData` of a session; {} for another message. Raises
    MalformedMessage."""
    params: dict[str, ParamValue] = {}
    for number, _, session in iterate_fields(content, budget):
        if number != 3 or isinstance(session, int):
            continue
        for inner, _, entry in iterate_fields(session, budget):
            if inner == 1 and not isinstance(entry, int):
                fields = {key: value for key, _, value in iterate_fields(entry, budget)}
                name, value = fields.get(1, b""), fields.get(2, b"")
                if not isinstance(name, int) and not isinstance(value, int):
                    params |= _hyperparameter(decode_text(name), value, budget)
    return params


def _hyperparameter(name: str, data: Buffer, budget: FieldLimit) -> dict[str, ParamValue]:
    """Returns the parameter of a `google.protobuf.Value`; {} for a list and for an object."""
    for number, wire, value in iterate_fields(data, budget):
        if number == 1:
            return {name: None}
        if number == 2 and wire is WireType.FIXED64 and not isinstance(value, int):
            (floating,) = _DOUBLE.unpack(value)
            # a number of any type is written as a double
            whole = math.isfinite(floating) and floating.is_integer() and abs(floating) < 2**53
            return {name: int(floating) if whole else encode_value(floating)}
        if number == 3 and not isinstance(value, int):
            return {name: decode_text(value[: 4 * MAX_PARAM_TEXT])[:MAX_PARAM_TEXT]}
        if number == 4 and isinstance(value, int):
            return {name: bool(value)}
    return {}


def _old_image(data: Buffer, budget: FieldLimit) -> MediaContents:
    sizes: dict[str, int] = {}
    encoded: Buffer = b""
    for number, _, value in iterate_fields(data, budget):
        if isinstance(value, int):
            if number in (1, 2):
                sizes["height" if number == 1 else "width"] = value
        elif number == 4:
            encoded = value
    return MediaContents(MediaKind.IMAGE, [_encode_image(encoded, sizes)])


def _images(data: Buffer, budget: FieldLimit) -> MediaContents:
    """Converts a list of width, height and the encoded images."""
    tensor = _texts(data, budget)
    if len(tensor.texts) < 3:
        return MediaContents(MediaKind.IMAGE, [])
    sizes = {name: _to_int(text) for name, text in zip(("width", "height"), tensor.texts, strict=False)}
    images = tensor.texts[2:]
    items = [_encode_image(image, sizes) for image in images[:MAX_PANEL_ITEMS]]
    return MediaContents(MediaKind.IMAGE, items, omitted=len(images) - len(items))


def _encode_image(encoded: Buffer, sizes: Mapping[str, int]) -> EncodedMedia:
    content = bytes(encoded)
    type_ = find_type(content, _IMAGE_TYPES, what="the image")
    size = png_size(content)
    stated = {name: value for name, value in sizes.items() if 0 < value < 2**31}
    return EncodedMedia(type_, content, stated if size is None else {"width": size[0], "height": size[1]})


def _old_audio(data: Buffer, budget: FieldLimit) -> MediaContents:
    encoded: Buffer = b""
    for number, _, value in iterate_fields(data, budget):
        if number == 4 and not isinstance(value, int):
            encoded = value
    return MediaContents(MediaKind.AUDIO, [_encode_audio(encoded)])


def _audio(data: Buffer, budget: FieldLimit) -> MediaContents:
    """Converts a list of encoded audio, or of pairs of it and a label."""
    tensor = _texts(data, budget)
    columns = tensor.shape[1] if len(tensor.shape) > 1 else 1
    if len(tensor.shape) > 2 or columns not in (1, 2):
        raise SpecError(f"audio in a tensor of shape {tensor.shape}")
    clips = tensor.texts[::columns]
    items = [_encode_audio(clip) for clip in clips[:MAX_PANEL_ITEMS]]
    captions = [decode_text(label) for label in tensor.texts[1::2]] if columns == 2 else []
    return MediaContents(MediaKind.AUDIO, items, captions[: len(items)], len(clips) - len(items))


def _encode_audio(encoded: Buffer) -> EncodedMedia:
    content, details = bytes(encoded), dict[str, float]()
    type_ = find_type(content, _AUDIO_TYPES, what="the audio")
    if type_ == "audio/wav":
        # a format other than PCM has no details
        with (
            suppress(wave.Error, struct.error, EOFError, ValueError, RuntimeError),
            wave.open(io.BytesIO(content)) as file,
        ):
            rate = file.getframerate()
            details = {"sample_rate": rate, "duration_s": file.getnframes() / rate} if rate > 0 else {}
    return EncodedMedia(type_, content, details)


def _old_histogram(data: Buffer, budget: FieldLimit) -> MediaContents:
    """Converts a `HistogramProto` as TensorBoard does: without the empty buckets at its ends, and with the
    smallest and the largest value as its outer edges."""
    numbers: dict[int, float] = {}
    arrays: dict[int, list[Buffer]] = {6: [], 7: []}
    for number, wire, value in iterate_fields(data, budget):
        if isinstance(value, int):
            continue
        if number in arrays and wire in (WireType.BYTES, WireType.FIXED64):
            arrays[number].append(value)
        elif number in (1, 2, 3, 4) and wire is WireType.FIXED64:
            (numbers[number],) = _DOUBLE.unpack(value)
    low, high, count, total = (numbers.get(number, 0.0) for number in (1, 2, 3, 4))
    limits, counts = _doubles(arrays[6]), _doubles(arrays[7])
    filled = [position for position, each in enumerate(counts) if each > 0]
    if not filled:
        return _encode_histogram([0.0], [0.0, 1.0])
    first, last = filled[0], filled[-1]
    edges = [low, *limits[first:last], high]
    mean = total / count if count else math.nan
    return _encode_histogram(counts[first : last + 1], edges, min=low, max=high, mean=mean)


def _histogram(data: Buffer, budget: FieldLimit) -> MediaContents:
    """Converts rows of left edge, right edge and count."""
    tensor = numbers_of_tensor(data, budget)
    if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] != 3:
        raise SpecError("a histogram is not a tensor of numbers of shape (buckets, 3)")
    lefts, rights, counts = tensor.numbers[::3], tensor.numbers[1::3], tensor.numbers[2::3]
    if not counts:
        return _encode_histogram([0.0], [0.0, 1.0])
    edges, filled = [lefts[0]], list[float]()
    for left, right, count in zip(lefts, rights, counts, strict=True):
        if left != edges[-1]:  # a gap is an empty bucket
            edges.append(left)
            filled.append(0.0)
        edges.append(right)
        filled.append(count)
    return _encode_histogram(filled, edges)


def _encode_histogram(counts: Sequence[float], edges: Sequence[float], **known: float) -> MediaContents:
    if not all(map(math.isfinite, counts)):
        raise SpecError("the counts of a histogram are not finite")
    if any(not low <= high for low, high in pairwise(edges)):
        raise SpecError("the edges of a histogram are not in ascending order")
    whole = [int(count) if count.is_integer() and abs(count) < 2**53 else count for count in counts]
    counted = given_counts(whole, edges, max_bins=_MAX_BUCKETS)
    if not math.isfinite(counted["count"]):
        raise SpecError("the counts of a histogram are too large")
    counted |= {"counts": whole, "count": sum(whole)} | {key: encode_value(v) for key, v in known.items()}
    details = {"count": counted["count"]}
    return MediaContents(MediaKind.HISTOGRAM, [EncodedMedia(JSON_TYPE, _to_json(counted), details)])


def _text(data: Buffer, budget: FieldLimit) -> MediaContents:
    """Converts one text, or a table of texts. Of more than two dimensions, TensorBoard shows the first part
    of the outer ones."""
    tensor = _texts(data, budget)
    if len(tensor.texts) == 1:
        text = decode_text(tensor.texts[0])
        item = EncodedMedia(TEXT_TYPE, text.encode(), {"characters": len(text)})
        return MediaContents(MediaKind.TEXT, [item])
    columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    count = columns * tensor.shape[-2] if len(tensor.shape) > 1 else len(tensor.texts)
    cells = [decode_text(text) for text in tensor.texts[:count]]
    rows = [cells[begin : begin + columns] for begin in range(0, len(cells), columns or 1)]
    table = read_table(rows, None)
    details = {"rows": len(table["rows"]), "columns": len(table["columns"])}
    return MediaContents(MediaKind.TABLE, [EncodedMedia(JSON_TYPE, _to_json(table), details)])


def _texts(data: Buffer, budget: FieldLimit) -> TensorTexts:
    tensor = texts_of_tensor(data, budget)
    if tensor is None:
        raise SpecError("it is not a tensor of strings")
    return tensor


def _doubles(parts: Sequence[Buffer]) -> list[float]:
    content = b"".join(parts)
    if len(content) > _MAX_BUCKETS * _DOUBLE.size:
        raise SpecError(f"a histogram has more than {_MAX_BUCKETS} buckets")
    if len(content) % _DOUBLE.size:
        raise SpecError("the buckets of a histogram are damaged")
    return [value for (value,) in _DOUBLE.iter_unpack(content)]


def _to_int(text: Buffer) -> int:
    digits = bytes(text[:10])
    return int(digits) if digits.isdigit() else 0


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


_CONVERTERS: Mapping[tuple[str, int], Callable[[Buffer, FieldLimit], MediaContents]] = {
    ("images", _IMAGE): _old_image,
    ("images", _TENSOR): _images,
    ("histograms", _HISTOGRAM): _old_histogram,
    ("histograms", _TENSOR): _histogram,
    ("audio", _AUDIO): _old_audio,
    ("audio", _TENSOR): _audio,
    ("text", _TENSOR): _text,
}
