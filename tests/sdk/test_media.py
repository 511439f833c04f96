"""Media in `hop.log`: the stored contents, and values that cannot be stored."""

from __future__ import annotations

import io
import json
import math
import os
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

import hopyard as hop
from hopyard.cli.terminal.png_decoder import decode_png
from hopyard.domain.media import MediaRecord, decode_record
from hopyard.domain.metric_records import Point, read_records
from hopyard.sdk import warn_once as warn_once_module
from hopyard.sdk.media_stream import LIMIT_VARIABLE, MediaStream
from hopyard.sdk.metrics import MetricStream


class Recording:
    """The streams of one process in a folder."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder, self.dropped = folder, list[str]()
        self.media = MediaStream(str(folder), environ, self.dropped.append)
        self.metrics = MetricStream(str(folder / "streams" / "metrics"), write_media=self.media.write)

    def log(self, step: int | None = None, **values: Any) -> None:
        self.metrics.write(step, values)

    @property
    def records(self) -> list[MediaRecord]:
        path = self.folder / "streams" / "media"
        if not path.exists():
            return []
        found = [decode_record(json.loads(line)) for line in path.read_text().splitlines()]
        return [record for record in found if record is not None]

    def content(self, record: MediaRecord) -> bytes:
        data = (self.folder / "streams" / "media_data").read_bytes()
        return data[record.offset : record.offset + record.size_bytes]

    def pixels(self, record: MediaRecord) -> Any:
        return np.asarray(PilImage.open(io.BytesIO(self.content(record))))

    @property
    def points(self) -> list[tuple[str, int, float]]:
        names: dict[int, str] = {}
        data = (self.folder / "streams" / "metrics").read_bytes()
        points = [point for point in read_records(data, names) if isinstance(point, Point)]
        return [(names[point.series], point.step, point.value) for point in points]


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(warn_once_module, "_shown_kinds", set())
    return Recording(tmp_path)


GREY = np.arange(15, dtype=np.uint8).reshape(3, 5) * 17
COLOUR = np.arange(45, dtype=np.uint8).reshape(3, 5, 3) * 5


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (GREY, GREY),
        (GREY[:, :, None], GREY),
        (GREY / 255.0, GREY),
        (GREY.tolist(), GREY),
        ([list(row) for row in GREY], GREY),  # numbers of NumPy
        ((GREY / 255.0).tolist(), GREY),
        (GREY > 100, (GREY > 100) * 255),
        (COLOUR, COLOUR),
        (COLOUR.transpose(2, 0, 1), COLOUR),
        (COLOUR.astype(np.int64), COLOUR),
        ((COLOUR / 255.0).astype(np.float16), COLOUR),
        (np.dstack([COLOUR, GREY]), np.dstack([COLOUR, GREY])),
        (PilImage.fromarray(COLOUR), COLOUR),
    ],
)
def test_image_is_stored_with_equal_pixels(recording: Recording, data: Any, expected: Any) -> None:
    recording.log(4, x=hop.Image(data, caption="a caption"))
    (record,) = recording.records
    assert (record.name, record.kind, record.type, record.step) == ("x", "image", "image/png", 4)
    assert (record.caption, record.details) == ("a caption", {"width": 5, "height": 3})
    assert recording.pixels(record).tolist() == np.asarray(expected).tolist()


def test_tensors_of_any_type_are_images(recording: Recording) -> None:
    torch = pytest.importorskip("torch")
    image = torch.tensor(COLOUR.transpose(2, 0, 1) / 255.0, requires_grad=True)
    recording.log(
        0,
        chw=hop.Image(image),
        half=hop.Image(image.bfloat16()),
        batch=hop.Image(image[None].repeat(2, 1, 1, 1)),
    )
    recording.log(0, w=hop.Histogram(torch.tensor([0.0, 1.0, 1.0], requires_grad=True), bins=2))
    by_name = {record.name: record for record in recording.records}
    assert recording.pixels(by_name["chw"]).tolist() == COLOUR.tolist()
    assert np.abs(recording.pixels(by_name["half"]).astype(int) - COLOUR).max() <= 1
    assert [record.index for record in recording.records if record.name == "batch"] == [0, 1]
    assert json.loads(recording.content(by_name["w"]))["counts"] == [1, 2]


def test_decoder_of_terminal_reads_what_the_encoder_writes(recording: Recording) -> None:
    recording.log(0, x=hop.Image(COLOUR))
    picture = decode_png(recording.content(recording.records[0]))
    assert picture is not None and picture.data == COLOUR.tobytes()
    filtered = io.BytesIO()
    PilImage.fromarray(COLOUR).save(filtered, format="PNG")  # with filters of its own choice
    picture = decode_png(filtered.getvalue())
    assert picture is not None and picture.data == COLOUR.tobytes()
    assert decode_png(filtered.getvalue()[:45]) is None
    indexed = PilImage.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8), "P")
    indexed.putpalette(bytes(range(192)))
    damaged = io.BytesIO()
    indexed.save(damaged, format="PNG")
    content = damaged.getvalue()
    assert decode_png(content) is not None
    at = content.index(b"PLTE")
    size = int.from_bytes(content[at - 4 : at])
    without_second_colour = content[: at - 4] + b"\0\0\0\3PLTE\0\0\0" + content[at + 4 + size :]
    assert decode_png(without_second_colour) is None


def test_figure_of_matplotlib_is_stored_in_its_size(recording: Recording) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(2, 1), dpi=50)
    axes = figure.add_subplot()
    axes.plot([1, 2, 3])
    recording.log(0, figure=hop.Figure(figure), axes=hop.Figure(axes), image=hop.Image(figure))
    assert [record.kind for record in recording.records] == ["figure", "figure", "image"]
    assert {recording.pixels(record).shape[:2] for record in recording.records} == {(50, 100)}


def test_audio_video_and_files(recording: Recording, tmp_path: Path) -> None:
    PilImage.fromarray(COLOUR).save(tmp_path / "x.jpg")
    samples = np.array([0.0, 0.5, -1.0, math.nan])
    recording.log(
        0,
        audio=hop.Audio(samples, sample_rate=8000),
        stereo=hop.Audio(np.zeros((2, 100), np.int16), sample_rate=8000),
        video=hop.Video(np.stack([COLOUR, COLOUR[::-1]]), fps=4),
        file=hop.Image(tmp_path / "x.jpg"),
        bytes=hop.Image((tmp_path / "x.jpg").read_bytes()),
    )
    by_name = {record.name: record for record in recording.records}
    with wave.open(io.BytesIO(recording.content(by_name["audio"]))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 1, 2)
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 16384, -32767, 0]
    with wave.open(io.BytesIO(recording.content(by_name["stereo"]))) as file:
        assert (file.getnchannels(), file.getnframes()) == (2, 100)
    animation = PilImage.open(io.BytesIO(recording.content(by_name["video"])))
    assert (animation.n_frames, by_name["video"].type) == (2, "image/apng")  # type: ignore[attr-defined]
    animation.seek(1)
    assert np.asarray(animation.convert("RGB")).tolist() == COLOUR[::-1].tolist()
    assert by_name["file"].type == "image/jpeg"
    assert recording.content(by_name["file"]) == (tmp_path / "x.jpg").read_bytes()
    assert by_name["bytes"].offset == by_name["file"].offset  # equal content is stored once


def test_histogram_table_and_text(recording: Recording) -> None:
    values = [0.0, 1.0, 2.0, 4.0, math.nan, math.inf]
    recording.log(
        0,
        array=hop.Histogram(np.array(values), bins=4),
        list=hop.Histogram(values, bins=4),
        same=hop.Histogram([2.0, 2.0], bins=2),
        counted=hop.Histogram(counts=[1, 3], edges=[0, 1, 2]),
        rows=hop.Table([[1, math.nan], [None, "x"]], columns=["a", "b"]),
        dicts=hop.Table([{"a": 1}, {"b": np.float32(0.5)}]),
        text=hop.Text("a\nü"),
    )
    contents = {record.name: recording.content(record) for record in recording.records}
    array, plain = json.loads(contents["array"]), json.loads(contents["list"])
    assert array == plain == array | {"counts": [1, 1, 1, 1], "count": 4, "not_finite": 2, "mean": 1.75}
    assert array["edges"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sum(json.loads(contents["same"])["counts"]) == 2
    assert json.loads(contents["counted"])["counts"] == [1, 3]
    assert json.loads(contents["rows"])["rows"] == [[1, "NaN"], [None, "x"]]
    assert json.loads(contents["dicts"])["rows"] == [[1, None], [None, 0.5]]
    assert contents["text"] == "a\nü".encode()


def test_data_frame_is_a_table(recording: Recording) -> None:
    pandas = pytest.importorskip("pandas")
    recording.log(0, frame=hop.Table(pandas.DataFrame({"a": [1, 2], "b": [0.5, math.nan]})))
    table = json.loads(recording.content(recording.records[0]))
    assert table == {"columns": ["a", "b"], "rows": [[1, 0.5], [2, "NaN"]], "omitted_rows": 0}


def test_media_and_numbers_share_a_call_and_its_step(recording: Recording) -> None:
    recording.log(7, loss=0.5, x=hop.Image(GREY))
    for _ in range(2):
        recording.log(acc=1.0, y=[hop.Image(GREY), hop.Image(COLOUR)])
    assert recording.points[0] == ("loss", 7, 0.5)
    assert [name for name, _, _ in recording.points] == ["loss", "acc", "acc"]
    assert [(r.name, r.step, r.index) for r in recording.records] == [
        ("x", 7, 0),
        ("y", 0, 0),
        ("y", 0, 1),
        ("y", 1, 0),
        ("y", 1, 1),
    ]


def test_counts_of_media_continue_from_a_checkpoint(recording: Recording) -> None:
    for is_other_run in (False, True):
        recording.metrics.continue_counts({"y": 5}, is_other_run=is_other_run)
        recording.log(y=hop.Text("a"))
        recording.log(y=hop.Text("b"))
    assert [record.step for record in recording.records] == [5, 6, 5, 6]


@pytest.mark.parametrize(
    "value",
    [
        hop.Image("missing.png"),
        hop.Image(b"not an image"),
        hop.Image(np.zeros((2, 3, 5))),
        hop.Image(np.zeros((0, 3))),
        hop.Image(object()),
        hop.Image([[1, 2], [3]]),
        hop.Image(None),
        hop.Image("/dev/zero"),
        hop.Audio(np.zeros(10)),
        hop.Audio(np.zeros((3, 3, 3)), sample_rate=1),
        hop.Video(np.zeros((2, 2))),
        hop.Video(np.zeros((1, 2, 2)), fps=0),
        hop.Histogram(["a"]),
        hop.Histogram([-1e308, 1e308]),
        hop.Histogram([1.0], bins=0),
        hop.Histogram(),
        hop.Histogram(counts=[1], edges=[1]),
        hop.Table([[1], [1, 2]]),
        hop.Table(5),
        hop.Text(5),
        hop.Figure(5),
    ],
)
def test_unsuitable_value_is_reported_once_and_the_others_are_recorded(
    recording: Recording, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2):
        recording.log(step, bad=value, loss=0.5, good=hop.Text("a"))
    assert [record.name for record in recording.records] == ["good", "good"]
    assert [step for _, step, _ in recording.points] == [1, 2]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("hopyard: hop.log: `bad`: ") and warning.endswith("; it is skipped")


def test_media_over_the_limit_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warn_once_module, "_shown_kinds", set())
    recording = Recording(tmp_path, **{LIMIT_VARIABLE: "4608"})
    for step in range(6):
        recording.log(step, x=hop.Text(str(step) * 1500))
    recording.log(6, y=hop.Text("small"))
    assert [(record.name, record.step) for record in recording.records] == [("x", 0), ("x", 1), ("y", 6)]
    recording.media._report_dropped(os.getpid())
    assert recording.dropped == [
        "images and other media after the limit of 4.5 KiB are left out "
        "(`runs: {max_media: …}` in config.yaml)",
        "4 images and other media are left out: over the limit",
    ]
    assert capsys.readouterr().err.count("\n") == 1


def test_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warn_once_module, "_shown_kinds", set())
    (tmp_path / "streams").write_text("a file")
    media = MediaStream(str(tmp_path), {}, lambda _: None)
    for step in range(3):
        media.write(step, "x", [hop.Text("a")])
    assert 1 <= capsys.readouterr().err.count("\n") <= 2


def test_forked_processes_append_to_the_same_streams(recording: Recording) -> None:
    recording.log(0, x=hop.Text("parent"))
    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            recording.media.reset()
            for step in range(20):
                recording.media.write(step, f"c{number}", [hop.Text(f"{number} {step}" * 50)])
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    recording.log(1, x=hop.Text("parent again"))
    for record in recording.records:
        if record.name != "x":
            assert recording.content(record).decode() == f"{record.name[1]} {record.step}" * 50
    assert len(recording.records) == 62
