"""Media in event files, written by the real writers, and read by this package and by TensorBoard itself."""

from __future__ import annotations

import io
import json
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from hopyard.domain.media import MediaKind
from hopyard.domain.metric_values import decode_value
from hopyard.replica.summary_values import (
    EventValue,
    Hyperparameters,
    MediaValue,
    SkippedValue,
    decode_values,
)
from hopyard.replica.tfevents import EventFiles
from tests.replica.test_tfevents import framed, read_values

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing import event_accumulator as legacy
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.audio import metadata as audio_metadata
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.util import tensor_util

Buckets = list[tuple[float, float, float]]


def png(width: int = 2, height: int = 3) -> bytes:
    buffer = io.BytesIO()
    PilImage.new("RGB", (width, height), (width, height, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def wav(frames: int, rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * frames))
    return buffer.getvalue()


def write(folder: Path, *summaries: Summary) -> None:
    events = [Event(wall_time=1.0, file_version="brain.Event:2")]
    events += [Event(wall_time=5.5, step=step, summary=each) for step, each in enumerate(summaries)]
    data = b"".join(framed(event.SerializeToString()) for event in events)
    (folder / "events.out.tfevents.1.host").write_bytes(data)


def read_media(folder: Path) -> dict[tuple[str, int], MediaValue]:
    values = read_values(EventFiles(folder))
    return {(value.tag, value.step): value for value in values if isinstance(value, MediaValue)}


def read_tensors(folder: Path) -> dict[tuple[str, int], Any]:
    """Returns what TensorBoard shows, by tag and step."""
    accumulator = EventAccumulator(str(folder), {legacy.TENSORS: 0}, purge_orphaned_data=False).Reload()
    return {
        (tag, event.step): tensor_util.make_ndarray(event.tensor_proto)
        for tag, metadata in accumulator.AllSummaryMetadata().items()
        for event in accumulator.Tensors(tag)
        if metadata.plugin_data.plugin_name in ("images", "histograms", "audio", "text")
    }


def buckets(value: MediaValue) -> Buckets:
    (item,) = value.content.items
    counted = json.loads(item.data)
    edges = [decode_value(edge) for edge in counted["edges"]]
    return list(zip(edges, edges[1:], counted["counts"], strict=False))


def filled(rows: Any) -> list[tuple[float, float, float]]:
    """Returns the buckets with counts, in the 32 bits that TensorBoard converts old histograms to."""
    rows = np.array(rows, "f4").reshape(-1, 3)
    return [tuple(row) for row in rows.tolist() if row[2] > 0]


@pytest.mark.torch
def test_values_of_pytorch_are_those_that_tensorboard_shows(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt
    from torch.utils.tensorboard import SummaryWriter

    rng, figure = np.random.default_rng(7), plt.figure()
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_image("picture", rng.random((3, 4, 5)), 1)
        writer.add_images("grid", rng.random((4, 3, 4, 5)), 2)
        writer.add_figure("figure", figure, 3)
        writer.add_histogram("normal", rng.normal(size=1000), 4)
        writer.add_histogram("auto", rng.normal(size=50), 4, bins="auto")
        writer.add_histogram("constant", np.full(9, 2.5), 4)
        writer.add_histogram("bounded", np.array([-1e30, 0.0, 1e30]), 4)
        writer.add_audio("sound", rng.random((1, 800)) - 0.5, 5, sample_rate=8000)
        writer.add_text("note", "first\nline é", 6)
        writer.add_pr_curve("curve", np.array([0, 1]), np.array([0.2, 0.8]), 7)
    plt.close(figure)
    found, shown = read_media(tmp_path), read_tensors(tmp_path)
    assert found.keys() == shown.keys() and len(found) == 9
    for key, value in found.items():
        content, tensor = value.content, shown[key]
        if content.kind is MediaKind.HISTOGRAM:
            assert filled(buckets(value)) == filled(tensor)
        elif content.kind is MediaKind.TEXT:
            assert content.items[0].data == tensor.item() == "first\nline é".encode()
        elif content.kind is MediaKind.IMAGE:
            assert [item.data for item in content.items] == list(tensor[2:])
            assert [content.items[0].details[name] for name in ("width", "height")] == [
                int(size) for size in tensor[:2]
            ]
        else:
            assert content.items[0].data == tensor[0]
            assert content.items[0].details == {"sample_rate": 8000, "duration_s": 0.1}
    counted = json.loads(found["normal", 4].content.items[0].data)
    assert counted["count"] == 1000 and counted["max"] == pytest.approx(
        max(edge for edge in counted["edges"])
    )


@st.composite
def histograms(draw: st.DrawFn) -> Summary:
    """Draws a histogram in the old form, with limits as TensorFlow 1 and PyTorch write them, or a new one."""
    numbers = st.floats(-1e6, 1e6)
    if draw(st.booleans()):
        data = draw(st.lists(numbers, max_size=20))
        return histogram_pb("h", data, buckets=draw(st.integers(0, 12)))
    limits = sorted(draw(st.sets(numbers, min_size=2, max_size=12)))
    counts = draw(st.lists(st.integers(0, 5) | st.floats(0, 1e9), min_size=len(limits), max_size=len(limits)))
    used = [position for position, count in enumerate(counts) if count > 0]
    low = limits[used[0] - 1] if used and used[0] else limits[0] - 1
    high = limits[used[-1]] if used else 0.0
    if draw(st.booleans()):
        limits[-1] = 1.7976931348623157e308
        high = max(low, *limits[:-1]) + 1
    return Summary(
        value=[
            Summary.Value(
                tag="h",
                histo=HistogramProto(
                    min=low, max=high, num=sum(counts), sum=3.0, bucket_limit=limits, bucket=counts
                ),
            )
        ]
    )


@seed(1)
@settings(max_examples=60)
@given(st.lists(histograms(), min_size=1, max_size=4))
def test_generated_histograms_have_the_buckets_of_tensorboard(summaries: list[Summary]) -> None:
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), *summaries)
        found, shown = read_media(Path(name)), read_tensors(Path(name))
    assert found.keys() == shown.keys()
    for key, value in found.items():
        assert filled(buckets(value)) == filled(shown[key])


def test_exact_counts_and_statistics_of_a_histogram_are_kept(tmp_path: Path) -> None:
    histogram = HistogramProto(
        min=-2.0, max=3.0, num=7, sum=3.5, bucket_limit=[-3.0, -1.0, 0.0, 1e300], bucket=[0, 4, 0, 3]
    )
    write(tmp_path, Summary(value=[Summary.Value(tag="h", histo=histogram)]))
    (item,) = read_media(tmp_path)["h", 0].content.items
    assert json.loads(item.data) == {
        "edges": [-2.0, -1.0, 0.0, 3.0],
        "counts": [4, 0, 3],
        "count": 7,
        "not_finite": 0,
        "min": -2.0,
        "max": 3.0,
        "mean": 0.5,
    }


def tensor_value(tag: str, content: Any, metadata: SummaryMetadata | None = None) -> Summary.Value:
    tensor = tensor_util.make_tensor_proto(np.array(content, object))
    return Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


@seed(2)
@settings(max_examples=25)
@given(
    st.integers(1, 5),
    st.lists(st.text(max_size=8), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 50), st.text(max_size=4)), min_size=1, max_size=3),
)
def test_generated_tensors_of_tensorflow_are_those_that_tensorboard_shows(
    width: int, texts: list[str], clips: list[tuple[int, str]]
) -> None:
    """As `tf.summary` writes them; a later value of a tag does not repeat its plugin."""
    images = [str(width).encode(), b"3", *[png(width)] * len(clips)]
    sounds = [[wav(frames), label.encode()] for frames, label in clips]
    image = image_metadata.create_summary_metadata(None, None)
    audio = audio_metadata.create_summary_metadata(
        None, None, audio_metadata.Encoding.Value("WAV"), converted_to_tensor=None
    )
    first = Summary(value=[tensor_value("i", images, image), tensor_value("a", sounds, audio)])
    first.value.extend(text_pb("t", np.array([text.encode() for text in texts], object)).value)
    later = Summary(value=[tensor_value("i", images), tensor_value("a", sounds)])
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), first, later)
        found, shown = read_media(Path(name)), read_tensors(Path(name))
    assert found.keys() == shown.keys() == {("i", 0), ("a", 0), ("t", 0), ("i", 1), ("a", 1)}
    for step in range(2):
        pictures = found["i", step].content
        assert [item.data for item in pictures.items] == list(shown["i", step][2:])
        assert pictures.items[0].details == {"width": width, "height": 3}
        sound = found["a", step].content
        assert [item.data for item in sound.items] == list(shown["a", step])
        assert list(sound.captions) == [label for _, label in clips]
    text = found["t", 0].content
    if len(texts) == 1:
        assert (text.kind, text.items[0].data) == (MediaKind.TEXT, texts[0].encode())
    else:
        assert text.kind is MediaKind.TABLE
        assert json.loads(text.items[0].data)["rows"] == [[each] for each in texts]


def test_hyperparameters_of_a_session_are_read(tmp_path: Path) -> None:
    write(tmp_path, hparams_pb({"lr": 0.5, "layers": 64, "net": "resnet", "pretrained": True}))
    (value,) = read_values(EventFiles(tmp_path))
    assert value == Hyperparameters({"lr": 0.5, "layers": 64, "net": "resnet", "pretrained": True})


def damaged_values() -> list[tuple[Summary.Value, str]]:
    text = text_pb("x", "x").value[0].metadata
    image = image_metadata.create_summary_metadata(None, None)
    limits = {"min": 0.0, "max": 1.0, "bucket_limit": [3.0, 2.0, 1.0], "bucket": [1.0, 1.0, 1.0]}
    many = {"min": 0.0, "max": 1.0, "bucket_limit": [1.0] * 10_001, "bucket": [1.0] * 10_001}
    infinite = {"min": 0.0, "max": 1.0, "bucket_limit": [0.0, 1.0], "bucket": [1.0, float("inf")]}
    return [
        (Summary.Value(tag="x", image=Summary.Image(encoded_image_string=b"BM")), "none of the formats"),
        (Summary.Value(tag="x", audio=Summary.Audio(encoded_audio_string=b"")), "none of the formats"),
        (Summary.Value(tag="x", histo=HistogramProto(**limits)), "ascending order"),
        (Summary.Value(tag="x", histo=HistogramProto(**many)), "more than 10000 buckets"),
        (Summary.Value(tag="x", histo=HistogramProto(**infinite)), "not finite"),
        (tensor_value("x", [b"2", b"2", *[png()] * 300], image), "300 items; the first 256 are kept"),
        (
            Summary.Value(tag="x", metadata=text, tensor=tensor_util.make_tensor_proto(1.5)),
            "not a tensor of strings",
        ),
    ]


@pytest.mark.parametrize("number", range(7))
def test_unsuitable_value_is_reported_and_the_others_are_kept(tmp_path: Path, number: int) -> None:
    value, reason = damaged_values()[number]
    write(tmp_path, Summary(value=[value, Summary.Value(tag="loss", simple_value=0.5)]))
    values = read_values(EventFiles(tmp_path))
    assert [each.tag for each in values if isinstance(each, SkippedValue)] == ["x"]
    assert reason in next(each.reason for each in values if isinstance(each, SkippedValue))
    assert values[-1][0] == "loss"


def hostile(kind: str) -> bytes:
    """Returns a valid record that would take long, or much memory, if each part of it were read."""
    if kind == "fields":
        return b"\x2a" + varint(2_000_000) + b"\x08\x01" * 1_000_000
    texts = b"\x42" + varint(60_000) + bytes(60_000)  # one text for a tensor of many equal ones
    shape = b"\x12" + varint(len(varint(250_000)) + 1) + b"\x08" + varint(250_000)
    tensor = b"\x08\x07\x12" + varint(len(shape)) + shape + texts
    plugin = b"\x0a\x06\x0a\x04text"
    value = b"\x0a\x01x\x42" + varint(len(tensor)) + tensor + b"\x4a" + varint(len(plugin)) + plugin
    summary = b"\x0a" + varint(len(value)) + value
    return b"\x2a" + varint(len(summary)) + summary


def varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


@pytest.mark.parametrize("kind", ["fields", "equal texts"])
def test_hostile_record_is_skipped_early(kind: str) -> None:
    record = hostile(kind)
    assert len(record) > 2 * 200_000 or kind != "fields"
    values: list[EventValue] = list(decode_values(record, {}))
    assert [type(value) for value in values] == [SkippedValue]
    assert ("too many fields" if kind == "fields" else "not a tensor of strings") in str(values)


@given(st.binary(max_size=300), st.sampled_from([b"\x22", b"\x2a", b"\x32", b"\x42"]))
def test_any_content_is_decoded_or_skipped(data: bytes, key: bytes) -> None:
    """Random bytes as an image, a histogram, audio and a tensor of each plugin."""
    for plugin in (b"images", b"histograms", b"audio", b"text", b"hparams", b"scalars"):
        metadata = b"\x0a" + varint(len(plugin) + 2) + b"\x0a" + varint(len(plugin)) + plugin
        value = b"\x0a\x01x" + key + varint(len(data)) + data + b"\x4a" + varint(len(metadata)) + metadata
        summary = b"\x0a" + varint(len(value)) + value
        list(decode_values(b"\x2a" + varint(len(summary)) + summary, {}))
