"""Event files, written by a real writer, by hand, in pieces, and damaged."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.replica.checksum import masked_crc
from hopyard.replica.protobuf import MalformedMessage, iterate_fields
from hopyard.replica.summary_values import EventValue, Hyperparameters, Scalar, decode_values
from hopyard.replica.tfevents import EventFiles
from tests.cli.shell import wait_until

tensorboardX = pytest.importorskip("tensorboardX")
from tensorboardX.proto.event_pb2 import Event  # noqa: E402
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata  # noqa: E402
from tensorboardX.proto.tensor_pb2 import TensorProto  # noqa: E402
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto  # noqa: E402


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def event(tag: str, value: float, step: int = 0) -> bytes:
    return framed(
        Event(
            wall_time=1000.5 + step,
            step=step,
            summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]),
        ).SerializeToString()
    )


def read_values(files: EventFiles) -> list[EventValue]:
    return [value for values in files.poll() for value in values]


def read_scalars(files: EventFiles) -> list[Scalar]:
    return [value for value in read_values(files) if isinstance(value, Scalar)]


def test_tensorboardx_files_are_read(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    assert read_scalars(files) == []
    with tensorboardX.SummaryWriter(str(tmp_path / "runs" / "Nov20_07-39-41_host")) as writer:
        for step in range(3):
            writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_text("note", "hello", 1)
        writer.add_histogram("weights", np.arange(100), 1)
        writer.add_image("picture", np.zeros((3, 400, 400), np.uint8), 1)
        first: list[tuple[str, int, float]] = []

        def arrived() -> bool:
            """A thread of the writer's writes, for which its `flush` does not wait."""
            writer.flush()
            first.extend((s.tag, s.step, s.value) for s in read_scalars(files))
            return len(first) >= 3

        wait_until(arrived)
        assert first == [("loss", 0, 1.0), ("loss", 1, 0.5), ("loss", 2, pytest.approx(1 / 3))]
        writer.add_scalar("loss", math.inf, 3)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 3)
        writer.flush()
    second = [(s.tag, s.step, s.value) for s in read_scalars(files)]
    assert second[0] == ("loss", 3, math.inf)
    assert sorted(tag for tag, _, _ in second[1:]) == ["both/a/both", "both/b/both"]
    assert read_scalars(files) == []
    assert files.unsupported() == {}


@pytest.mark.torch
def test_pytorch_writer_files_are_read(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="torch.utils.tensorboard needs it")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", 0.5, 7)
        writer.add_scalar("new", 0.25, 8, new_style=True)
    assert [(s.tag, s.step, s.value) for s in read_scalars(EventFiles(tmp_path))] == [
        ("loss", 7, 0.5),
        ("new", 8, 0.25),
    ]


@pytest.mark.torch
def test_placeholder_of_lightning_is_no_metric(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the logger needs it")
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logger = loggers.TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"lr": 0.1})
    logger.log_metrics({"loss": -1.0}, 0)
    logger.log_metrics({"hp_metric": 0.75}, 5)  # of the script itself
    logger.finalize("success")
    values = read_values(EventFiles(tmp_path))
    assert [(s.tag, s.step, s.value) for s in values if isinstance(s, Scalar)] == [
        ("loss", 0, -1.0),
        ("hp_metric", 5, 0.75),
    ]
    assert [each.values for each in values if isinstance(each, Hyperparameters)] == [{"lr": 0.1}]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (TensorProto(dtype=1, float_val=[0.5]), 0.5),
        (TensorProto(dtype=2, double_val=[0.1]), 0.1),
        (TensorProto(dtype=3, int_val=[-3]), -3.0),
        (TensorProto(dtype=9, int64_val=[2**40]), float(2**40)),
        (TensorProto(dtype=10, bool_val=[True]), 1.0),
        (TensorProto(dtype=1, tensor_content=np.float32(2.5).tobytes()), 2.5),
        (TensorProto(dtype=2, tensor_content=np.float64(0.1).tobytes()), 0.1),
        (TensorProto(dtype=9, tensor_content=np.int64(-7).tobytes()), -7.0),
        (TensorProto(dtype=19, tensor_content=np.float16(1.5).tobytes()), 1.5),
        (
            TensorProto(
                dtype=1, float_val=[1.5], tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
            ),
            1.5,
        ),
        (
            TensorProto(
                dtype=1, float_val=[1, 2], tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=2)])
            ),
            None,
        ),
        (TensorProto(dtype=1, tensor_content=np.zeros(2, np.float32).tobytes()), None),
        (TensorProto(dtype=19, half_val=[0x3E00]), 1.5),
        (TensorProto(dtype=14, half_val=[0x3FC0]), 1.5),
        (TensorProto(dtype=14, tensor_content=b"\xc0\xbf"), -1.5),
        (TensorProto(dtype=7, string_val=[b"text"]), None),
        (TensorProto(dtype=1), None),
    ],
)
def test_scalars_stored_as_tensors_are_read(tensor: TensorProto, expected: float | None) -> None:
    def said(plugin: str) -> list[float]:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
        value = Summary.Value(tag="x", tensor=tensor, metadata=metadata)
        return [
            s.value
            for s in decode_values(Event(step=-2, summary=Summary(value=[value])).SerializeToString(), {})
            if s.step == -2
        ]

    assert said("scalars") == ([] if expected is None else [expected])
    assert said("hparams") == []


def test_record_written_in_pieces_is_read_once(tmp_path: Path) -> None:
    data = b"".join(event("loss", float(i), i) for i in range(5))
    path, files, scalars = tmp_path / "events.out.tfevents.1.host", EventFiles(tmp_path), []
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(data), 7):
            file.write(data[at : at + 7])
            scalars += read_scalars(files)
    assert [(s.step, s.value) for s in scalars] == [(i, float(i)) for i in range(5)]
    assert scalars[3].wall_time == 1003.5


def test_damaged_record_ends_only_its_file(tmp_path: Path) -> None:
    good, bad = event("a", 1.0), bytearray(event("b", 2.0))
    bad[20] ^= 1
    path, files = tmp_path / "events.out.tfevents.1", EventFiles(tmp_path)
    path.write_bytes(good + bad)
    (tmp_path / "events.out.tfevents.2").write_bytes(event("other", 4.0))
    assert sorted(s.tag for s in read_scalars(files)) == ["a", "other"]
    with path.open("ab") as file:
        file.write(event("c", 3.0))
    assert read_scalars(files) == [] and read_scalars(files) == []


def test_zero_bytes_that_are_filled_later_are_read(tmp_path: Path) -> None:
    """A page of zeros that is filled afterwards, as some network file systems show it."""
    path, files, data = tmp_path / "events.out.tfevents.1", EventFiles(tmp_path), event("a", 1.0)
    path.write_bytes(bytes(len(data)))
    assert read_scalars(files) == []
    path.write_bytes(data)
    assert [s.tag for s in read_scalars(files)] == ["a"]


def test_rotated_replaced_and_nested_files_are_read(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    (tmp_path / "events.out.tfevents.1").write_bytes(event("a", 1.0))
    assert [s.tag for s in read_scalars(files)] == ["a"]
    (tmp_path / "events.out.tfevents.2").write_bytes(event("a", 2.0, 1))
    for folder in ("train", "logs/validation", "lightning_logs/version_3", ".git"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "events.out.tfevents.1").write_bytes(event("loss", 3.0))
    assert sorted((s.tag, s.value) for s in read_scalars(files)) == [
        ("a", 2.0),
        ("loss", 3.0),
        ("train/loss", 3.0),
        ("validation/loss", 3.0),
    ]
    fresh = tmp_path / "fresh"
    fresh.write_bytes(event("b", 5.0))
    fresh.replace(tmp_path / "events.out.tfevents.1")
    assert [(s.tag, s.value) for s in read_scalars(files)] == [("b", 5.0)]
    (tmp_path / "events.out.tfevents.2").unlink()
    assert read_scalars(files) == []


def test_missing_folder_has_no_records(tmp_path: Path) -> None:
    files = EventFiles(tmp_path / "later")
    assert read_scalars(files) == []
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "events.out.tfevents.1").write_bytes(event("a", 1.0))
    assert [s.tag for s in read_scalars(files)] == ["a"]


def test_only_what_is_written_later_counts(tmp_path: Path) -> None:
    old = tmp_path / "runs" / "Jan01_00-00-00_host" / "events.out.tfevents.1"
    old.parent.mkdir(parents=True)
    old.write_bytes(event("foo", 1.0))
    files, foreign = EventFiles(tmp_path), EventFiles(tmp_path)
    files.skip_existing(appended=True)
    foreign.skip_existing(appended=False)
    assert read_scalars(files) == [] == read_scalars(foreign)
    with old.open("ab") as file:
        file.write(event("foo", 2.0))
    assert [(s.tag, s.value) for s in read_scalars(files)] == [("foo", 2.0)]
    assert read_scalars(foreign) == []


def test_files_of_others_do_not_count(tmp_path: Path) -> None:
    own: set[str] = set()
    files = EventFiles(tmp_path, is_own=own.__contains__)
    for name in ("1.a", "1.b"):
        (tmp_path / f"events.out.tfevents.{name}").write_bytes(event(name, 1.0))
    assert read_scalars(files) == []
    own.add(str(tmp_path / "events.out.tfevents.1.b"))
    assert [s.tag for s in read_scalars(files)] == ["1.b"]


def test_media_beside_scalars_do_not_hide_them(tmp_path: Path) -> None:
    image = Summary.Image(height=1, width=1, colorspace=3, encoded_image_string=bytes(2_000_000))
    values = [Summary.Value(tag="picture", image=image), Summary.Value(tag="loss", simple_value=0.5)]
    both = Event(step=1, summary=Summary(value=values)).SerializeToString()
    only = Event(step=2, summary=Summary(value=values[:1])).SerializeToString()
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(framed(both) + framed(only) + event("loss", 0.25, 3))
    assert [(s.tag, s.step, s.value) for s in read_scalars(EventFiles(tmp_path))] == [
        ("loss", 1, 0.5),
        ("loss", 3, 0.25),
    ]


@given(
    st.text(min_size=1, max_size=150),
    st.floats(width=32, allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
def test_scalar_is_read_as_written(tag: str, value: float, step: int, at: float) -> None:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    data = Event(wall_time=at, step=step, summary=summary).SerializeToString()
    assert list(decode_values(data, {})) == [(tag, step, at, value)]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_error(data: bytes) -> None:
    list(decode_values(data, {}))
    try:
        list(iterate_fields(data))
    except MalformedMessage:
        pass
