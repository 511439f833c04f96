"""Decodes the `Event` messages of TensorBoard: scalars, media and hyperparameters.

Formats: tensorflow/core/util/event.proto, core/framework/summary.proto.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from hopyard.errors import HopyardError
from hopyard.replica.protobuf import (
    Buffer,
    FieldLimit,
    MalformedMessage,
    WireType,
    decode_text,
    iterate_fields,
)
from hopyard.replica.summary_media import MediaContents, ParamValue, convert, hyperparameters
from hopyard.replica.tensor_values import scalar_of_tensor

_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
# the fields of `Summary.Value` with the old form of a value of a plugin
_OLD_FORMS = {4: "images", 5: "histograms", 6: "audio"}
_SIMPLE_VALUE, _TENSOR = 2, 8
_SESSION_LOG = 7  # of an event; its field 1 is the status, of which 1 is a start
MEDIA_PLUGINS = frozenset({"images", "histograms", "audio", "text"})
_SESSION_TAG = "_hparams_/session_start_info"  # its value contains the hyperparameters
# far above the limits of names: a longer tag costs only memory
_MAX_TAG_BYTES = 4096
_MAX_TAGS = 100_000  # of one file, with a known plugin
# an event with one number, as PyTorch, tensorboardX and TensorFlow 1 write it: time, step, tag, value
_PLAIN_EVENT = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a([\x00-\x7f]|[\x80-\xff][\x00-\x7f])"
    rb"\x0a([\x00-\x7f]|[\x80-\xff][\x00-\x7f])\x0a([\x01-\x7f])(.{1,127})\x15(.{4})",
    re.DOTALL,
)
_MAX_PLAIN_BYTES = 180  # of an event of this form


class Scalar(NamedTuple):
    tag: str
    step: int
    wall_time: float  # unix seconds
    value: float


# by Lightning beside the hyperparameters, of a script that logs no metric for TensorBoard's page of them
_PLACEHOLDER = ("hp_metric", 0, -1.0)


class MediaValue(NamedTuple):
    tag: str
    step: int
    wall_time: float  # unix seconds
    content: MediaContents


class Hyperparameters(NamedTuple):
    """The hyperparameters of one session, by name."""

    values: dict[str, ParamValue]


class SkippedValue(NamedTuple):
    """A value, or items of one, that cannot be stored. tag: empty for a whole event. reason: a sentence for
    the user."""

    tag: str
    reason: str


class SessionStart(NamedTuple):
    """The start of a writer that continues at this step: earlier scalars of its folder from there on are
    replaced. tags: of these scalars; empty in one file."""

    step: int
    tags: tuple[str, ...] = ()


EventValue = Scalar | MediaValue | Hyperparameters | SkippedValue | SessionStart


class _Value(NamedTuple):
    """One `Summary.Value`. form: its plugin by its own fields. field, data: of its content. metadata: the
    content of its plugin's metadata."""

    tag: str
    form: str
    number: float | None
    field: int
    data: Buffer
    metadata: Buffer


def decode_values(event: Buffer, plugins: dict[str, str], *, skip: bool = False) -> Iterator[EventValue]:
    """Yields the values in one `Event` message; none for events of other kinds and for bytes that are not a
    message.

    plugins: the plugin of each tag that earlier events of the file stated, which this call extends. The first
    one counts, as in TensorBoard: later values need not repeat it. skip: yields nothing, and only extends
    `plugins`.
    """
    plain = None if len(event) > _MAX_PLAIN_BYTES else _PLAIN_EVENT.fullmatch(event)
    if plain is not None:
        time_bytes, step_bytes, outer, inner, tag_length, tag_bytes, value_bytes = plain.groups()
        inner_length = tag_length[0] + 7
        # otherwise, the bytes of the parts only look like these fields
        if (
            tag_length[0] == len(tag_bytes)
            and _read_varint(inner) == inner_length
            and _read_varint(outer) == inner_length + 1 + len(inner)
        ):
            step, tag = _read_varint(step_bytes or b"\0"), decode_text(tag_bytes)
            if _plugin_of(plugins, tag, "scalars") == "scalars" and not skip:
                scalar = Scalar(
                    tag,
                    step - 2**64 if step >= 2**63 else step,
                    _DOUBLE.unpack(time_bytes)[0],
                    _FLOAT.unpack(value_bytes)[0],
                )
                if (tag, scalar.step, scalar.value) != _PLACEHOLDER:
                    yield scalar
            return
    try:
        yield from _decode_event(event, plugins, FieldLimit(), skip=skip)
    except MalformedMessage as error:
        # other bytes than those of a message have a right checksum only if something else wrote them
        if not skip and len(event) > _MAX_PLAIN_BYTES:
            yield SkippedValue("", f"an event of {len(event):,} bytes is skipped: {error}")


def _decode_event(
    event: Buffer, plugins: dict[str, str], budget: FieldLimit, *, skip: bool
) -> Iterator[EventValue]:
    wall_time, step = 0.0, 0
    summary: Buffer = b""
    starts = False
    for number, kind, value in iterate_fields(event, budget):
        if number == 1 and kind is WireType.FIXED64 and not isinstance(value, int):
            (wall_time,) = _DOUBLE.unpack(value)
        elif number == 2 and isinstance(value, int):
            step = value - 2**64 if value >= 2**63 else value
        elif number == 5 and not isinstance(value, int):
            summary = value
        elif number == _SESSION_LOG and not isinstance(value, int):
            starts = any(field == 1 and status == 1 for field, _, status in iterate_fields(value, budget))
    if starts and not skip:
        yield SessionStart(step)
    for number, _, data in iterate_fields(summary, budget):
        if number != 1 or isinstance(data, int):
            continue
        found = _summary_value(data, budget)
        plugin = _plugin_of(plugins, found.tag, found.form) if found.form else plugins.get(found.tag, "")
        if found.tag and not skip:
            yield from _convert(found, plugin, step, wall_time, budget)


def _plugin_of(plugins: dict[str, str], tag: str, form: str) -> str:
    """Returns the plugin of a tag, which the first value states."""
    plugin = plugins.get(tag)
    if plugin is None:
        plugin = form
        if len(plugins) < _MAX_TAGS:
            plugins[tag] = form
    return plugin


def _convert(
    value: _Value, plugin: str, step: int, wall_time: float, budget: FieldLimit
) -> Iterator[EventValue]:
    if plugin == "scalars":
        number = value.number
        if number is None and value.field == _TENSOR:
            number = scalar_of_tensor(value.data, budget)
        if number is not None and (value.tag, step, number) != _PLACEHOLDER:
            yield Scalar(value.tag, step, wall_time, number)
    elif plugin == "hparams" and value.tag == _SESSION_TAG:
        values = hyperparameters(value.metadata, budget)
        if values:
            yield Hyperparameters(values)
    elif plugin in MEDIA_PLUGINS:
        try:
            content = convert(plugin, value.field, value.data, budget)
        except HopyardError as error:
            yield SkippedValue(value.tag, f"{error.message}; it is skipped")
            return
        except MalformedMessage as error:
            yield SkippedValue(value.tag, f"{error}; it is skipped")
            return
        if content is not None:
            yield MediaValue(value.tag, step, wall_time, content)
            if content.omitted:
                items = len(content.items)
                yield SkippedValue(
                    value.tag, f"it has {items + content.omitted} items; the first {items} are kept"
                )


def _read_varint(data: bytes) -> int:
    value = 0
    for shift, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * shift
    return value & 0xFFFFFFFFFFFFFFFF


def _summary_value(data: Buffer, budget: FieldLimit) -> _Value:
    tag, form, number_value, field = "", "", None, 0
    content: Buffer = b""
    metadata: Buffer = b""
    for number, kind, value in iterate_fields(data, budget):
        if isinstance(value, int):
            continue
        if number == 1:
            tag = decode_text(value[:_MAX_TAG_BYTES])
        elif number == _SIMPLE_VALUE and kind is WireType.FIXED32:
            (number_value,) = _FLOAT.unpack(value)
            form = "scalars"
        elif number in _OLD_FORMS:
            form, field, content = _OLD_FORMS[number], number, value
        elif number == _TENSOR:
            field, content = number, value
        elif number == 9:
            plugin, metadata = _plugin(value, budget)
            form = form or plugin
    return _Value(tag, form, number_value, field, content, metadata)


def _plugin(metadata: Buffer, budget: FieldLimit) -> tuple[str, Buffer]:
    """Returns the name and the content of the `PluginData` of a value."""
    name = ""
    content: Buffer = b""
    for number, _, plugin_data in iterate_fields(metadata, budget):
        if number == 1 and not isinstance(plugin_data, int):
            for inner, _, value in iterate_fields(plugin_data, budget):
                if inner == 1 and not isinstance(value, int):
                    name = decode_text(value[:_MAX_TAG_BYTES])
                elif inner == 2 and not isinstance(value, int):
                    content = value
    return name, content
