"""Generated event files, read by this package and by TensorBoard itself."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.replica.checksum import masked_crc
from hopyard.replica.summary_values import Scalar
from hopyard.replica.tfevents import EventFiles
from tests.replica.test_tfevents import read_scalars

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing import event_accumulator as legacy
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.util import tensor_util

TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "?"]
TAGS = st.sampled_from(["a", "b/c", "loss"]) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=130
)
Curves = dict[str, list[tuple[int, str, str]]]


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def metadata(plugin: str) -> SummaryMetadata:
    return SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))


@st.composite
def values(draw: st.DrawFn, stated: set[str], prefix: str) -> Summary.Value:
    """Draws one value. stated: the tags that have stated their plugin, as writers do it once for each tag."""
    tag = prefix + draw(TAGS)
    number = draw(st.floats(width=16))
    kind = draw(st.sampled_from(["plain"] * 4 + ["tensor"] * 4 + ["vector", "text", "image", "histogram"]))
    if kind == "plain":
        return Summary.Value(tag=tag, simple_value=draw(st.floats(width=32)))
    if kind == "image":
        return Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=b"png"))
    if kind == "histogram":
        histogram = HistogramProto(min=0, max=1, num=1, bucket_limit=[1.0], bucket=[1.0])
        return Summary.Value(tag=tag, histo=histogram)
    plugin = draw(st.sampled_from(["scalars"] * 4 + ["text", "pr_curves", "hparams"]))
    content: Any = np.array(draw(st.integers(-100, 100))).astype(draw(st.sampled_from(TYPES)))
    if kind == "tensor" and draw(st.booleans()):
        content = np.array(number, draw(st.sampled_from(["f2", "f4", "f8"])))
    elif kind == "vector":
        content = np.array([number] * draw(st.integers(0, 3)), "f4")
    elif kind == "text":
        content = np.array(b"text", object)
    tensor = tensor_util.make_tensor_proto(content)
    if draw(st.booleans()) and content.dtype != object:
        tensor = type(tensor)(
            dtype=tensor.dtype, tensor_shape=tensor.tensor_shape, tensor_content=content.tobytes()
        )
    if tag in stated and draw(st.booleans()):
        return Summary.Value(tag=tag, tensor=tensor)
    stated.add(tag)
    return Summary.Value(tag=tag, tensor=tensor, metadata=metadata(plugin))


@st.composite
def event_files(draw: st.DrawFn) -> list[bytes]:
    files = []
    for number in range(draw(st.integers(1, 3))):
        records, stated = [Event(wall_time=1.0, file_version="brain.Event:2")], set[str]()
        for _ in range(draw(st.integers(0, 8))):
            drawn = draw(st.lists(values(stated, f"{number}"), max_size=3))
            if draw(st.integers(0, 9)) == 0:
                image = Summary.Image(encoded_image_string=bytes(70_000))
                drawn.append(Summary.Value(tag=f"{number}picture", image=image))
                drawn.append(Summary.Value(tag=f"{number}beside the picture", simple_value=0.5))
            step = draw(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9))
            at = draw(st.floats(0, 2**33))
            records.append(Event(wall_time=at, step=step, summary=Summary(value=drawn)))
        files.append(b"".join(framed(record.SerializeToString()) for record in records))
    damaged = draw(st.integers(0, len(files) - 1))
    data = bytearray(files[damaged])
    damage = draw(st.sampled_from(["", "", "cut", "wrong byte"]))
    at = draw(st.integers(0, len(data) - 1))
    if damage == "cut":
        del data[at:]
    elif damage == "wrong byte":
        data[at] ^= 1 << draw(st.integers(0, 7))
    files[damaged] = bytes(data)
    return files


def read_with_tensorboard(folder: Path) -> Curves:
    accumulator = EventAccumulator(str(folder), {legacy.TENSORS: 0}, purge_orphaned_data=False).Reload()
    curves: Curves = {}
    for tag, stated in accumulator.AllSummaryMetadata().items():
        points = []
        for point in accumulator.Tensors(tag) if stated.plugin_data.plugin_name == "scalars" else ():
            array = tensor_util.make_ndarray(point.tensor_proto)
            if array.size == 1 and array.dtype.kind in "fiub":
                points.append((point.step, repr(point.wall_time), repr(float(array.item()))))
        if points:
            curves[tag] = points
    return curves


@pytest.mark.parametrize("step", [2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("tensor", [False, True])
def test_unsigned_step_is_the_signed_one_that_tensorboard_shows(
    tmp_path: Path, step: int, tensor: bool
) -> None:
    """As a writer in another language may encode it: the format defines steps as signed 64-bit numbers."""
    number: Any = {
        "tensor": tensor_util.make_tensor_proto(np.array(0.5, "f4")),
        "metadata": metadata("scalars"),
    }
    value = Summary.Value(tag="a", **(number if tensor else {"simple_value": 0.5}))
    summary = Event(summary=Summary(value=[value])).SerializeToString()
    varint = bytes(step >> shift & 0x7F | (0x80 if step >> shift + 7 else 0) for shift in range(0, 64, 7))
    record = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + varint.rstrip(b"\0") + summary
    start = Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString()
    (tmp_path / "events.out.tfevents.1.host").write_bytes(framed(start) + framed(record))
    expected = {"a": [(step - 2**64 if step >= 2**63 else step, "1.0", "0.5")]}
    assert read_with_tensorboard(tmp_path) == expected
    assert as_curves(read_scalars(EventFiles(tmp_path))) == expected


def as_curves(scalars: list[Scalar]) -> Curves:
    curves: Curves = {}
    for tag, step, at, value in scalars:
        curves.setdefault(tag, []).append((step, repr(at), repr(value)))
    return curves


@settings(max_examples=100)
@given(event_files(), st.integers(0, 2**32))
def test_files_are_read_as_tensorboard_reads_them(files: list[bytes], seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, scalars = Path(name), list[Scalar]()
        followed = EventFiles(folder)
        for number, data in enumerate(files):
            cut = seed % (len(data) + 1)
            with (folder / f"events.out.tfevents.{number}.host").open("wb") as file:
                for part in (data[:cut], data[cut:]):
                    file.write(part)
                    file.flush()
                    scalars += read_scalars(followed)
        assert as_curves(scalars) == read_with_tensorboard(folder)
        assert as_curves(read_scalars(EventFiles(folder))) == as_curves(scalars)
