"""Checkpoints of a study: files of its trainer in the folder of the driver's replica. As every checkpoint,
they are complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.errors import SpecError
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.sdk.checkpoints import INDEX_FILE
from hopyard.sdk.streams import EventStream, stream_sizes
from hopyard.studies.trainer import RestoredCheckpoint

_FORMAT = 1


def write_checkpoint(
    folder: Path,
    events: EventStream,
    step: int,
    files: Mapping[str, Path],
    metrics: Mapping[str, float],
    states: Any = None,
) -> Path:
    """Saves copies of `files` as the checkpoint of `step`, and announces it to the replica, which ships it.

    states: metadata by file (JSON), from which a fork of the study finds the best state. Raises OSError if
    the disk fails; no files remain then.
    """
    root = folder / "checkpoints"
    make_folder(root)
    offsets = stream_sizes(str(folder / "streams"))
    scratch, final = root / f".tmp-{step}-{os.urandom(6).hex()}", root / str(step)
    make_folder(scratch)
    try:
        for name, path in files.items():
            if name == INDEX_FILE or "/" in name or name.startswith("."):
                raise SpecError(f"`{name}` cannot name a file of a checkpoint")
            _copy(path, scratch / name)
        index = {
            "format": _FORMAT,
            "step": step,
            "loops": [],
            "metrics": dict(metrics),
            "objects": {},
            "states": states,
        }
        write_atomically(scratch / INDEX_FILE, json.dumps(index).encode())
        _sync(scratch / INDEX_FILE)
        _sync(scratch)
        scratch.rename(final)
        _sync(root)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    events.append(
        "checkpoint", step=step, folder=f"checkpoints/{step}", offsets=offsets, metrics=dict(metrics)
    )
    return final


def find_checkpoint(
    folder: Path, restored: Path | None, restored_step: int | None
) -> RestoredCheckpoint | None:
    """Returns the newest checkpoint of this attempt if its driver was restarted, otherwise the one from which
    the attempt started."""
    folders = [
        path
        for path in (folder / "checkpoints").glob("*")
        if path.name.isdecimal() and (path / INDEX_FILE).is_file()
    ]
    if folders:
        newest = max(folders, key=lambda path: int(path.name))
        return RestoredCheckpoint(int(newest.name), _files(newest))
    if restored is None or restored_step is None:
        return None
    return RestoredCheckpoint(restored_step, _files(restored))


def _files(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.name != INDEX_FILE and path.is_file()}


def _copy(source: Path, target: Path) -> None:
    """Creates a hard link if possible, since states never change after they are written."""
    try:
        os.link(source, target)
    except OSError:
        os.close(open_file(target, os.O_WRONLY | os.O_CREAT))
        shutil.copyfile(source, target)
    _sync(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
