"""Downloads the code, checkpoint, files, logs, metrics and media of a run."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.checkpoint_lookup import NEWEST, CheckpointChoice, find_checkpoint
from hopyard.client.download import download_tree
from hopyard.client.feedback import Notify, ProgressFactory, no_progress, print_notice
from hopyard.client.media import MEDIA_LIST, fetch_media, list_media, media_paths
from hopyard.client.run_files import RunFile, fetch_run_files, file_names, list_run_files
from hopyard.client.system_usage import load_system_series
from hopyard.datasets.ignore_rules import HOPIGNORE
from hopyard.datasets.open_folder import OpenFolder
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.json_text import format_json
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.errors import NotFound, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

PARTS = ("code", "checkpoint", "files", "run-dir", "logs", "metrics", "media")
_BLOCK_BYTES = 1024 * 1024
_IGNORE_FILE_TEXT = "# by hop pull: what was fetched does not travel with later runs of the folder above\n*\n"


@dataclass(frozen=True, slots=True)
class PullResult:
    """A downloaded part of a run. part: one of PARTS. files: how many; None for logs and metrics."""

    part: str
    path: Path
    size_bytes: int
    files: int | None = None

    @property
    def text(self) -> str:
        size = format_bytes(self.size_bytes)
        if self.files is None:
            return f"{self.path}  {size}"
        return f"{self.path}  {self.files:,} file{'' if self.files == 1 else 's'}, {size}"


def pull_run(
    client: Client,
    run: api.RunOut,
    dest: Path | None,
    parts: Sequence[str],
    *,
    step: CheckpointChoice = None,
    force: bool = False,
    notify: Notify = print_notice,
    on_part: Callable[[PullResult], None] = lambda _: None,
    on_progress: ProgressFactory = no_progress,
) -> Path:
    """Downloads these PARTS of a run, and returns the folder.

    dest: by default a new folder named after the run. step: the choice
    of the checkpoint. on_part: receives each downloaded part.
    notify: receives warnings.

    A new folder gets a `.hopignore`, so that its contents do not travel with later runs. Raises SpecError for
    a folder that cannot be written, NotFound for a step without a checkpoint.
    """
    dest = dest or Path(f"{run['name'].split('/')[1]}-{run['name'].rpartition('/')[2]}")
    named = len(parts) < len(PARTS)
    saved = _find_checkpoint(client, run, step, notify) if "checkpoint" in parts else None
    _check_destination(dest, force)
    is_new = not dest.exists()
    try:
        dest.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"{dest} cannot be made: {error.strerror}", hints=("name another DEST",)) from error
    try:
        with OpenFolder.open_path(dest) as top:
            if is_new:
                top.write(HOPIGNORE, [_IGNORE_FILE_TEXT.encode()])
            for part in parts:
                pulled = _pull_part(part, client, run, dest, force, saved, top, on_progress)
                if pulled is not None:
                    on_part(pulled)
                elif named:
                    notify(f"note: {run['name']} has no {part}")
            top.write("run.json", [format_json(run).encode()])
    except OSError as error:
        raise SpecError(
            f"{dest} cannot be written: {error.strerror}", hints=("name another DEST",)
        ) from error
    return dest


def _check_destination(dest: Path, force: bool) -> None:
    if dest.exists() and not dest.is_dir():
        raise SpecError(f"{dest} is not a folder", hints=("name another DEST",))
    if dest.is_dir() and any(dest.iterdir()) and not force:
        raise SpecError(f"{dest} is not empty", hints=("name another DEST, or --force to write into it",))


def _find_checkpoint(
    client: Client, run: api.RunOut, step: CheckpointChoice, notify: Notify
) -> api.CheckpointOut | None:
    """Returns the checkpoint of `step`, or the newest undamaged one; None if the run has none. Raises
    the errors of `find_checkpoint`."""
    if step is not None and step != NEWEST:
        return find_checkpoint(client, run, step, what="--step")
    saved = [each for each in client.iterate_run_checkpoints(run["id"]) if not each.get("path")]
    listed = {checkpoint["step"]: checkpoint for checkpoint in saved}
    undamaged = {at: checkpoint for at, checkpoint in listed.items() if not checkpoint.get("damaged")}
    if listed and (not undamaged or max(listed) > max(undamaged)):
        notify(
            f"warning: the checkpoint of step {max(listed)} is damaged"
            + (f": that of step {max(undamaged)} is fetched" if undamaged else ", and there is no other")
        )
    return undamaged[max(undamaged)] if undamaged else None


def _pull_part(
    part: str,
    client: Client,
    run: api.RunOut,
    dest: Path,
    force: bool,
    checkpoint: api.CheckpointOut | None,
    top: OpenFolder,
    on_progress: ProgressFactory,
) -> PullResult | None:
    """Downloads one part; returns None where the run has no such part."""
    if part == "logs":
        return _pull_logs(client, run, dest, top)
    if part == "run-dir":
        return _pull_run_dir(client, run, dest / part, on_progress)
    if part == "metrics":
        return _pull_metrics(client, run, dest, top)
    if part == "media":
        return _pull_media(client, run, dest, top)
    trees = {
        "code": (run["spec"].get("code"), "code"),
        "files": (run.get("artifact"), "files"),
        "checkpoint": (None, "")
        if checkpoint is None
        else (checkpoint["manifest"], f"checkpoint-{checkpoint['step']}"),
    }
    digest, folder = trees[part]
    if not digest:
        return None
    into = dest / folder
    if part == "files" and (files := _encoded_files(client, run)):
        if into.exists() and not force:
            raise SpecError(f"{into} exists", hints=("name another DEST, or use --force",))
        fetch_run_files(
            client, run, dict(zip(file_names(files), files, strict=True)), into, on_progress=on_progress
        )
        return PullResult(part, into, sum(file.size_bytes for file in files), len(files))
    manifest = download_tree(client, digest, into, merge=force, on_progress=on_progress)
    return PullResult(part, into, manifest.size_bytes, len(manifest.files))


def _encoded_files(client: Client, run: api.RunOut) -> list[RunFile]:
    """Returns the files of an ended run if some have names that only this machine's file system may hold."""
    files = list_run_files(client, run)
    return files if any(file.encoded for file in files) else []


def _pull_run_dir(
    client: Client, run: api.RunOut, into: Path, on_progress: ProgressFactory
) -> PullResult | None:
    """Downloads the files of `$HOPYARD_RUN_DIR`."""
    files = list_run_files(client, run, is_run_dir=True)
    if not files:
        return None
    named = dict(zip(file_names(files), files, strict=True))
    fetch_run_files(client, run, named, into, on_progress=on_progress)
    return PullResult("run-dir", into, sum(file.size_bytes for file in files), len(files))


def _pull_logs(client: Client, run: api.RunOut, dest: Path, top: OpenFolder) -> PullResult:
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    total = 0
    with top.ensure_folder("logs") as folder:
        for rank in range(size):
            for stream in OUTPUT_STREAMS:
                name = f"{stream}.log" if size == 1 else f"{rank}.{stream}.log"
                with client.open(
                    "GET", f"/runs/{run['id']}/log", query={"stream": stream, "rank": rank}
                ) as response:
                    # read before the next response
                    total += folder.write(name, iter(lambda: response.read(_BLOCK_BYTES), b""))
    return PullResult("logs", dest / "logs", total)


def _pull_metrics(client: Client, run: api.RunOut, dest: Path, top: OpenFolder) -> PullResult | None:
    """Writes the points of all metrics and the samples of the resource usage as CSV. Returns None without
    any."""
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    files = {
        "metrics.csv": dict(client.iterate_run_metrics(run["id"])),
        **{
            "system.csv" if size == 1 else f"{rank}.system.csv": load_system_series(
                client, run, rank=rank, max_points=None
            )
            for rank in range(size)
        },
    }
    total = 0
    if not any(files.values()):
        return None
    with top.ensure_folder("metrics") as folder:
        for name, series in files.items():
            if series:
                total += folder.write(name, _csv_lines(series))
    return PullResult("metrics", dest / "metrics", total)


def _pull_media(client: Client, run: api.RunOut, dest: Path, top: OpenFolder) -> PullResult | None:
    """Writes the media to `NAME/STEP.png`, and their list. Returns None without any."""
    try:
        items = media_paths(list_media(client, run))
    except NotFound:  # an older server lists none
        return None
    if not items:
        return None
    listed = [{"path": path, **item} for path, item in items.items()]
    with top.ensure_folder("media") as folder:
        folder.write(MEDIA_LIST, [format_json(listed).encode()])
        total = fetch_media(client, run, items, folder)
    return PullResult("media", dest / "media", total, len(items))


def _csv_lines(series: Mapping[str, api.SeriesOut]) -> Iterator[bytes]:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("name", "step", "time", "value"))
    for name, one in series.items():
        for point in zip(one["steps"], one["times"], one["values"], strict=True):
            writer.writerow((name, *("" if value is None else value for value in point)))
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
