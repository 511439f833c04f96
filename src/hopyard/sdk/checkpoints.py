"""Checkpoint folders: complete or absent.

    <step>/hopyard.json     what is in it, written last
    <step>/<name>.pt|.pkl   one file for each bound object
    <step>/random-state.pkl of the random number generators; random-state-N.pkl: as loop N began

A folder is made as `.tmp-<step>-<random>`, synced to the disk, and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hopyard.errors import IntegrityError, SpecError
from hopyard.private_files import make_folder, open_file
from hopyard.sdk import state as states
from hopyard.sdk.state import Kind

INDEX = "hopyard.json"
_CHANCE = "random-state.pkl"  # no bound object has a name with `-`
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Position:
    """How far a loop was: `done` turns of the loop `name` that runs inside `depth` others.

    finished: that many loops of this name were through, one after another (then `done` is that of the last);
    0 means under way. chance: the random number generators as the loop began, for iterables that draw their
    order at the start.
    """

    name: str
    depth: int
    done: int
    finished: int = 0
    chance: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint as it was found on disk. `objects` maps each name to its file. foreign: as of
    `state.read`. run: which saved it, "" where that is not known. logged: how many points of each metric it
    had logged without a step."""

    folder: str
    step: int
    positions: tuple[Position, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False
    run: str = ""
    logged: Mapping[str, int] = field(default_factory=dict)

    def state_of(self, name: str) -> Any:
        """Raises IntegrityError, SpecError for what is not plain in another user's."""
        try:
            return states.read(_inside(self.folder, self.objects[name]), foreign=self.foreign)
        except SpecError as refused:
            raise SpecError(
                f"`{name}` of the checkpoint of step {self.step}: {refused.message}", hints=refused.hints
            ) from None

    def chance(self) -> dict[str, Any]:
        path = os.path.join(self.folder, _CHANCE)
        return states.read(path, foreign=self.foreign) if os.path.exists(path) else {}


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def write(
    root: str,
    step: int,
    objects: Mapping[str, Any],
    positions: Sequence[Position],
    metrics: Mapping[str, float],
    *,
    run: str = "",
    logged: Mapping[str, int] | None = None,
) -> str:
    """Save `objects` under `root`/`step`; returns the folder.
    An earlier checkpoint of the same step is replaced.

    Raises OSError when the disk refuses and SpecError for an object that cannot be saved; then nothing is
    left behind.
    """
    make_folder(root, below=os.path.dirname(root))
    scratch = os.path.join(root, f".tmp-{step}-{os.urandom(6).hex()}")
    make_folder(scratch, below=root)
    try:
        _fill(
            scratch,
            step,
            objects,
            positions,
            {"metrics": dict(metrics), "run": run, "logged": dict(logged or {})},
        )
        _sync_tree(scratch)
        final = os.path.join(root, str(step))
        _move(scratch, final)
    except BaseException:
        _remove(scratch)
        raise
    _sync(root)
    return final


def _fill(
    folder: str,
    step: int,
    objects: Mapping[str, Any],
    positions: Sequence[Position],
    facts: Mapping[str, Any],
) -> None:
    files: dict[str, str] = {}
    for name, value in objects.items():
        if states.kind_of(value) is not Kind.ASIDE:
            files[name] = name + states.write(os.path.join(folder, name), value, states.take(value))
    states.pickle_to(os.path.join(folder, _CHANCE), states.take_chance())
    for number, position in enumerate(positions):
        if position.chance is not None:
            states.pickle_to(os.path.join(folder, f"random-state-{number}.pkl"), position.chance)
    loops = [
        {
            "name": p.name,
            "depth": p.depth,
            "done": p.done,
            "finished": p.finished,
            "chance": p.chance is not None,
        }
        for p in positions
    ]
    index = {"format": _FORMAT, "step": step, "loops": loops, "objects": files, **facts}
    with open(os.path.join(folder, INDEX), "w", encoding="utf-8", opener=open_file) as text:
        json.dump(index, text)


def _move(scratch: str, final: str) -> None:
    while True:
        try:
            os.rename(scratch, final)
            return
        except OSError:
            if not os.path.isdir(final):
                raise
        aside = f"{os.path.dirname(final)}/.old-{os.path.basename(final)}-{os.urandom(6).hex()}"
        with suppress(FileNotFoundError):
            os.rename(final, aside)
            _remove(aside)


def _inside(folder: str, name: str) -> str:
    """The file of this name in a checkpoint. What is written in it names no other."""
    if "/" in name or name in ("", ".", ".."):
        raise IntegrityError(f"{folder} is not a checkpoint that can be read: `{name}` is no file's name")
    return os.path.join(folder, name)


def read(folder: str, *, foreign: bool = False) -> Contents:
    """What a checkpoint folder holds. Raises IntegrityError when it is not a whole one; foreign: see
    `state.read`."""
    try:
        with open(os.path.join(folder, INDEX), encoding="utf-8") as text:
            index = json.load(text)
        if index["format"] != _FORMAT:
            raise IntegrityError(
                f"{folder}: a checkpoint of format {index['format']!r}", hints=("upgrade hopyard",)
            )
        positions = tuple(
            _position(folder, number, said, foreign=foreign) for number, said in enumerate(index["loops"])
        )
        logged = {str(name): int(count) for name, count in index.get("logged", {}).items()}
        return Contents(
            folder,
            int(index["step"]),
            positions,
            dict(index["metrics"]),
            dict(index["objects"]),
            foreign,
            str(index.get("run", "")),
            logged,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as bad:
        raise IntegrityError(f"{folder} is not a checkpoint that can be read: {bad}") from bad


def _position(folder: str, number: int, said: Mapping[str, Any], *, foreign: bool) -> Position:
    chance = (
        states.read(os.path.join(folder, f"random-state-{number}.pkl"), foreign=foreign)
        if said["chance"]
        else None
    )
    return Position(str(said["name"]), int(said["depth"]), int(said["done"]), int(said["finished"]), chance)


def keep_newest(root: str, count: int) -> None:
    """Remove all but the `count` checkpoints that were written last, and what an interrupted save left."""
    found: list[tuple[float, str]] = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                found.append((entry.stat().st_mtime, entry.path))
            elif entry.name.startswith(".old-"):
                _remove(entry.path)
    for _, path in sorted(found)[: -count or None]:
        _remove(path)


def _sync_tree(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            _sync(entry.path)
    _sync(folder)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
