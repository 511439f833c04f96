"""Media and hyperparameters of event files in the streams of a run: limits, full disks, and dead replicas."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hopyard.domain.media import MediaRecord, decode_record
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.tensorboard_tail import EVENT_POSITIONS, TensorBoardTail, read_positions
from tests.replica.test_tensorboard_tail import folder, points
from tests.replica.test_tfevents import Event, Summary, SummaryMetadata, event, framed

__all__ = ["folder"]  # a fixture
PNG = b"\x89PNG\r\n\x1a\n"
IMAGES = "events.out.tfevents.1"


def image(tag: str, content: bytes, step: int = 0) -> bytes:
    value = Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=PNG + content))
    summary = Summary(value=[value])
    return framed(Event(wall_time=7.5, step=step, summary=summary).SerializeToString())


def session(**params: float) -> bytes:
    """Returns the event in which `add_hparams` states its parameters."""
    pytest.importorskip("tensorboard")
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    value = hparams_pb(params).value[0]
    stated = SummaryMetadata.FromString(value.metadata.SerializeToString())
    summary = Summary(value=[Summary.Value(tag=value.tag, metadata=stated)])
    return framed(Event(wall_time=1.0, summary=summary).SerializeToString())


def media(folder: ReplicaDir) -> list[tuple[str, int, bytes]]:
    """Returns name, step and content of each item."""
    try:
        lines = (folder.streams / "media").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    assert all(line.endswith(b"\n") for line in lines)
    data = (folder.streams / "media_data").read_bytes()
    records = [decode_record(json.loads(line)) for line in lines]
    return [(each.name, each.step, content_of(each, data)) for each in records if each is not None]


def content_of(record: MediaRecord, data: bytes) -> bytes:
    return data[record.offset : record.offset + record.size_bytes].removeprefix(PNG)


def params(folder: ReplicaDir) -> list[dict[str, float]]:
    try:
        lines = (folder.streams / "events").read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [each["values"] for each in map(json.loads, lines) if each["kind"] == "params"]


@contextmanager
def full_disk(size_bytes: int) -> Iterator[None]:
    """A file size limit makes writes short, and then fail, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_values_that_a_full_disk_rejects_are_written_once_later(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder, given_params=())
    scalars = b"".join(event("loss", float(step), step) for step in range(300))
    pictures = [image("picture", bytes([step]) * 6000, step) for step in range(3)]
    data = b"".join((scalars, *pictures, session(lr=0.5), event("last", 1.0)))
    (folder.work / IMAGES).write_bytes(data)
    for size_bytes in (0, 1000, 5000, 11_000):  # in a point, and in a picture
        with full_disk(size_bytes), pytest.raises(OSError, match=r"."):
            tail.poll()
    tail.poll()
    assert points(folder) == [*(("loss", float(step)) for step in range(300)), ("last", 1.0)]
    assert media(folder) == [("picture", step, bytes([step]) * 6000) for step in range(3)]
    assert params(folder) == [{"lr": 0.5}]


def test_part_of_a_line_that_a_full_disk_left_is_removed(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder)
    (folder.work / IMAGES).write_bytes(b"".join(image("a", bytes([step]), step) for step in range(20)))
    for size_bytes in (500, 1000):
        with full_disk(size_bytes), pytest.raises(OSError, match=r"."):
            tail.poll()
        assert 0 < len(media(folder)) < 20
    tail.poll()
    assert media(folder) == [("a", step, bytes([step])) for step in range(20)]


def test_last_poll_waits_for_space_on_a_full_disk(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder)
    (folder.work / IMAGES).write_bytes(event("loss", 0.5) + image("picture", b"x"))
    with full_disk(0):
        with pytest.raises(OSError, match=r"."):
            tail.poll()
        tail.start()
        assert tail.finish(0.1) > 0
    second = TensorBoardTail(folder)
    second.start()
    assert second.finish(60) == 0
    assert points(folder) == []


def test_values_that_a_dead_replica_had_written_are_not_doubled(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder, given_params=())
    file = folder.work / "train" / IMAGES
    file.parent.mkdir()
    file.write_bytes(image("a", b"one"))
    tail.poll()
    position = (folder.root / EVENT_POSITIONS).read_bytes()
    with file.open("ab") as stream:
        stream.write(image("a", b"two", 1) + image("a", b"two", 1) + session(lr=0.5))
    tail.poll()
    (folder.root / EVENT_POSITIONS).write_bytes(position)
    with (folder.streams / "tensorboard").open("ab") as stream:
        stream.write(b"\x02part of a point")
    with file.open("ab") as stream:
        stream.write(image("a", b"three", 2) + event("loss", 0.5))
    for _ in range(2):  # the adopting replica may die as well
        resumed = TensorBoardTail(folder, given_params=(), resume=read_positions(folder))
        resumed.start()
        assert resumed.finish(60) == 0
        assert media(folder) == [
            ("train/a", 0, b"one"),
            ("train/a", 1, b"two"),
            ("train/a", 1, b"two"),
            ("train/a", 2, b"three"),
        ]
        assert params(folder) == [{"train/lr": 0.5}]
        assert points(folder) == [("train/loss", 0.5)]


def test_media_over_the_limit_are_left_out_with_one_warning(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder, max_media_bytes=2000)
    data = b"".join(image("a", bytes([step]) * 600, step) for step in range(9))
    repeated = image("a", bytes(600), 9)  # equal content is stored once
    (folder.work / IMAGES).write_bytes(data + repeated)
    tail.poll()
    kept = media(folder)
    assert [step for _, step, _ in kept] == [0, 1, 9]
    assert tail.dropped_sentence().startswith("7 images")
    warnings = (folder.streams / "stderr").read_text().splitlines()
    assert len(warnings) == 1 and "max_media" in warnings[0], warnings


def test_given_and_declared_parameters_are_not_replaced(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder, given_params={"lr": 1.0})
    folder.append_json("events", kind="params", values={"epochs": 3})
    (folder.work / IMAGES).write_bytes(session(lr=0.5, epochs=9, width=64) + session(width=32, depth=2))
    tail.poll()
    assert params(folder) == [{"epochs": 3}, {"width": 64, "depth": 2}]


def test_other_ranks_record_no_parameters(folder: ReplicaDir, tmp_path: Path) -> None:
    tail = TensorBoardTail(folder, given_params=None)
    (folder.work / IMAGES).write_bytes(session(lr=0.5) + image("a", b"one"))
    tail.poll()
    assert params(folder) == [] and len(media(folder)) == 1


def test_unsuitable_values_cause_one_warning_for_each_name(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder)
    value = Summary.Value(tag="pic\x1b[31m", image=Summary.Image(encoded_image_string=b"BMP"))
    bad = framed(Event(summary=Summary(value=[value])).SerializeToString())
    (folder.work / IMAGES).write_bytes(bad * 5 + image("good", b"x"))
    tail.poll()
    (warning,) = (folder.streams / "stderr").read_text().splitlines()
    assert "\x1b" not in warning and "none of the formats" in warning and "skipped" in warning
    assert media(folder) == [("good", 0, b"x")]
