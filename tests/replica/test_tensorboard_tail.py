"""Following of event files beside a script."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboardX import SummaryWriter

from hopyard.domain.metric_records import Point, Purge, read_records
from hopyard.replica.output_metrics import append_missing_points
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.tensorboard_tail import EVENT_FILES, EVENT_POSITIONS, TensorBoardTail, read_positions
from tests.replica.test_tfevents import Event, Summary, SummaryMetadata, TensorProto, event, framed


@pytest.fixture
def folder(tmp_path: Path) -> ReplicaDir:
    folder = ReplicaDir(tmp_path / "attempts" / "a.1" / "0")
    folder.root.mkdir(parents=True)
    folder.create()
    return folder


def points(folder: ReplicaDir) -> list[tuple[str, float]]:
    names: dict[int, str] = {}
    try:
        data = (folder.streams / "tensorboard").read_bytes()
    except FileNotFoundError:
        return []
    return [(names[p.series], p.value) for p in read_records(data, names) if isinstance(p, Point)]


def test_thread_reads_what_was_written_before_the_end(folder: ReplicaDir) -> None:
    (folder.work / "events.out.tfevents.1").write_bytes(event("old", 1.0))
    tail = TensorBoardTail(folder)
    tail.start()
    (folder.work / "runs").mkdir()
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="mesh"))
    meshes = b"".join(
        framed(Event(summary=Summary(value=[Summary.Value(tag=tag, metadata=metadata)])).SerializeToString())
        for tag in ("a", "b", "c", "d")
    )
    (folder.work / "runs" / "events.out.tfevents.2").write_bytes(event("new", 2.0) + meshes)
    assert tail.finish(60) == 0
    assert points(folder) == [("new", 2.0)]
    expected = "of TensorBoard, these stay in its event files: meshes (a, b, c and 1 more)"
    assert tail.unsupported_sentence() == expected


def visible(folder: ReplicaDir) -> dict[str, list[tuple[int, float]]]:
    names: dict[int, str] = {}
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in read_records((folder.streams / "tensorboard").read_bytes(), names):
        if isinstance(record, Purge):
            curve = curves[names[record.series]]
            curve[:] = [point for point in curve if point[0] < record.step]
        elif isinstance(record, Point):
            curves.setdefault(names[record.series], []).append((record.step, record.value))
    return curves


def test_writer_that_continues_replaces_later_points_of_its_folder(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder)

    def write(name: str, value: float, begin: int, **options: Any) -> None:
        with SummaryWriter(str(folder.work / "runs" / name), filename_suffix=str(value), **options) as writer:
            for step in range(begin, begin + 4):
                writer.add_scalar("loss", value, step)
        tail.poll()

    write("train", 1.0, 0)
    write("val", 2.0, 0)
    position = (folder.root / EVENT_POSITIONS).read_bytes()
    write("train", 3.0, 2, purge_step=2)
    expected = {
        "train/loss": [(0, 1.0), (1, 1.0), *((step, 3.0) for step in range(2, 6))],
        "val/loss": [(step, 2.0) for step in range(4)],
    }
    assert visible(folder) == expected
    (folder.root / EVENT_POSITIONS).write_bytes(position)  # a replica that adopts it reads this part again
    resumed = TensorBoardTail(folder, resume=read_positions(folder))
    resumed.poll()
    assert visible(folder) == expected


def test_lowest_step_is_a_step(folder: ReplicaDir) -> None:
    """The stream's mark of a point without a step is the same number."""
    (folder.work / "events.out.tfevents.1").write_bytes(b"")
    tail = TensorBoardTail(folder)
    (folder.work / "events.out.tfevents.2").write_bytes(event("a", 2.0, -(2**63)) + event("a", 3.0, -1))
    tail.poll()
    data = (folder.streams / "tensorboard").read_bytes()
    steps = [record.step for record in read_records(data, {}) if isinstance(record, Point)]
    assert steps == [-(2**63) + 1, -1]


def test_large_files_are_left_unread_after_the_timeout(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder)
    tail.start()
    (folder.work / "events.out.tfevents.2").write_bytes(event("new", 2.0) * 200_000)
    assert tail.finish(0) > 0


def test_files_of_parallel_runs_in_one_folder_are_told_apart(folder: ReplicaDir, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "events.out.tfevents.1.host").write_bytes(event("earlier", 0.0))
    tail = TensorBoardTail(folder, str(logs))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        foreign = os.getppid()
        (logs / f"events.out.tfevents.2.host.{foreign}.0").write_bytes(event("foreign", 1.0))
        (logs / f"events.out.tfevents.2.host.{child.pid}.0").write_bytes(event("own", 2.0))
        tail.poll()
        assert points(folder) == [("own", 2.0)]
        child.communicate(b"\n")
    for name in ("3.reported", "3.silent"):
        (logs / f"events.out.tfevents.{name}").write_bytes(event(name, 3.0))
    elsewhere = tmp_path / "elsewhere" / "events.out.tfevents.4"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(event("elsewhere", 4.0))
    reported = [str(logs / "events.out.tfevents.3.reported"), str(elsewhere), str(tmp_path / "other")]
    lines = [json.dumps(path) for path in reported]
    (folder.root / EVENT_FILES).write_text("\n".join([lines[0], "{damaged", *lines[1:]]) + "\n")
    tail.poll()
    assert points(folder) == [("own", 2.0), ("3.reported", 3.0), ("elsewhere", 4.0)]


def test_files_of_other_runs_in_the_home_are_not_read(folder: ReplicaDir, tmp_path: Path) -> None:
    other = tmp_path / "attempts" / "b.1" / "0" / "work"
    other.mkdir(parents=True)
    (folder.work / "runs").mkdir()
    tail = TensorBoardTail(folder, str(other), hidden=tmp_path)
    (other / "events.out.tfevents.1").write_bytes(event("foreign", 1.0))
    (folder.work / "runs" / "events.out.tfevents.1").write_bytes(event("own", 2.0))
    (folder.root / EVENT_FILES).write_text(json.dumps(str(other / "events.out.tfevents.1")) + "\n")
    tail.poll()
    assert points(folder) == [("own", 2.0)]
    (other / "events.out.tfevents.1").write_bytes(event("foreign", 1.0) * 9)
    (folder.work / "runs").rename(folder.work / "moved")
    (folder.work / "runs").symlink_to(other)
    tail.poll()
    assert ("foreign", 1.0) not in points(folder)


def test_printed_metrics_that_a_dead_replica_had_not_read_are_added_once(folder: ReplicaDir) -> None:
    lines = ("epoch {step}: loss {loss}", "acc {acc}%")
    folder.append("stdout", b"epoch 1: loss 0.5\nacc 7%\nacc 7%\nepoch 2: loss nan\n")
    TensorBoardTail(folder, metric_lines=lines).poll()
    assert len(points(folder)) == 4
    folder.append("stdout", b"acc 7%\nepoch 3: loss 0.125\nepoch 4: loss 0.1")
    append_missing_points(folder, lines, ended=False)
    append_missing_points(folder, lines, ended=False)
    assert points(folder)[4:] == [("acc", 7.0), ("loss", 0.125)], "the last line may be cut"
    append_missing_points(folder, lines, ended=True)
    assert points(folder)[6:] == [("loss", 0.1)]


def test_points_that_a_dead_replica_had_not_read_are_added_once(folder: ReplicaDir, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (folder.work / "events.out.tfevents.1").write_bytes(event("of the code", 1.0))
    (logs / "events.out.tfevents.1.host").write_bytes(event("earlier", 0.0))
    tail = TensorBoardTail(folder, str(logs))
    runs = {name: folder.work / "runs" / name / "events.out.tfevents.2" for name in ("train", "test")}
    outside = logs / "events.out.tfevents.2.host"
    for file in (*runs.values(), outside):
        file.parent.mkdir(parents=True, exist_ok=True)
    stated = Summary.Value(
        tag="tensor",
        tensor=TensorProto(dtype=1, float_val=[7.0]),
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars")),
    )
    runs["train"].write_bytes(
        event("a", 1.0) + framed(Event(summary=Summary(value=[stated])).SerializeToString())
    )
    outside.write_bytes(event("own", 3.0))
    (folder.root / EVENT_FILES).write_text(json.dumps(str(outside)) + "\n")
    tail.poll()
    before = [("train/a", 1.0), ("train/tensor", 7.0), ("own", 3.0)]
    assert sorted(points(folder)) == sorted(before)
    position = (folder.root / EVENT_POSITIONS).read_bytes()

    # points after the last position that the replica writes, and points that it does not read
    unstated = Summary.Value(tag="tensor", tensor=TensorProto(dtype=1, float_val=[8.0]))
    with runs["train"].open("ab") as file:
        file.write(event("a", math.nan, 1) + event("a", 2.0, 1) + event("a", 2.0, 1))
    tail.poll()
    (folder.root / EVENT_POSITIONS).write_bytes(position)
    with runs["train"].open("ab") as file:
        file.write(framed(Event(step=2, summary=Summary(value=[unstated])).SerializeToString()))
    runs["test"].write_bytes(event("a", 4.0))
    with outside.open("ab") as file:
        file.write(event("own", 5.0, 1))
    (logs / "events.out.tfevents.3.host").write_bytes(event("foreign", 9.0))
    for _ in range(2):  # the adopting replica may die as well
        positions = read_positions(folder)
        assert positions is not None
        resumed = TensorBoardTail(folder, resume=positions)
        resumed.start()
        assert resumed.finish(60) == 0
        added = points(folder)[len(before) :]
        assert [name for name, _ in added[:3]] == ["train/a"] * 3 and added[1:3] == [("train/a", 2.0)] * 2
        assert sorted(added[3:]) == [("own", 5.0), ("test/a", 4.0), ("train/tensor", 8.0)]


def test_event_files_in_a_folder_of_another_encoding_are_followed(folder: ReplicaDir) -> None:
    file = Path(os.fsdecode(os.fsencode(folder.work) + b"/caf\xe9/events.out.tfevents.1"))
    file.parent.mkdir()
    file.write_bytes(event("of the code", 1.0))
    tail = TensorBoardTail(folder)
    with file.open("ab") as stream:
        stream.write(event("a", 2.0))
    tail.poll()
    assert [value for _, value in points(folder)] == [2.0]
    positions = read_positions(folder)
    assert positions is not None and list(positions.work.files) == [str(file)]
    with file.open("ab") as stream:
        stream.write(event("a", 3.0, 1))
    TensorBoardTail(folder, resume=positions).poll()
    assert [value for _, value in points(folder)] == [2.0, 3.0]


def test_replica_without_positions_reads_no_event_files(folder: ReplicaDir) -> None:
    assert read_positions(folder) is None
    (folder.root / EVENT_POSITIONS).write_bytes(b"{damaged")
    assert read_positions(folder) is None


def test_files_of_other_ranks_of_a_launcher_are_ignored(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder)
    lines = []
    for rank in range(2):
        file = folder.work / "runs" / f"rank{rank}" / "events.out.tfevents.1"
        file.parent.mkdir(parents=True)
        file.write_bytes(event("loss", float(rank)))
        lines.append(json.dumps({"ignored": str(file)} if rank else str(file)) + "\n")
    lines.append(json.dumps({"ignored": str(folder.work / "runs/rank0/events.out.tfevents.1")}) + "\n")
    (folder.root / EVENT_FILES).write_text("".join(lines))
    tail.poll()
    assert points(folder) == [("loss", 0.0)]


def test_files_at_a_place_of_a_continued_run_are_read(folder: ReplicaDir, tmp_path: Path) -> None:
    """Its processes see their own files there. For others, the place leads nowhere or to another run."""
    home = tmp_path / "linked-home"
    home.symlink_to(tmp_path)
    places = tmp_path / "run-folders"
    other = tmp_path / "attempts" / "old.1"
    for root in (other, folder.root.parent):
        (root / "run").mkdir(parents=True)
    places.mkdir()
    (places / "old").symlink_to(other)
    tail = TensorBoardTail(folder, hidden=tmp_path, continued_places=[home / "run-folders" / "old"])
    lines = []
    for number, seen in enumerate((home, tmp_path)):
        name = f"run/events.out.tfevents.{number}"
        (other / name).write_bytes(event("foreign", 1.0))
        (folder.root.parent / name).write_bytes(event(f"own{number}", 2.0))
        lines.append(json.dumps(str(seen / "run-folders" / "old" / name)))
    (folder.root / EVENT_FILES).write_text("\n".join([*lines, ""]))
    tail.poll()
    assert points(folder) == [("own0", 2.0), ("own1", 2.0)]


def test_printed_metrics_are_read_from_both_streams(folder: ReplicaDir) -> None:
    tail = TensorBoardTail(folder, metric_lines=("epoch {step}: loss {loss}", "acc {acc}%"))
    folder.append("stdout", b"epoch 1: loss 0.5\nepoch 2: lo")
    tail.poll()
    assert points(folder) == [("loss", 0.5)]
    folder.append("stdout", b"ss 0.25\n" + b"x" * 2_000_000 + b" epoch 3: loss 1\n")
    folder.append("stderr", b"10%\racc 90%\racc 95%")
    tail.start()
    assert tail.finish(60) == 0
    assert points(folder)[1:] == [("loss", 0.25), ("loss", 1.0), ("acc", 90.0), ("acc", 95.0)]
