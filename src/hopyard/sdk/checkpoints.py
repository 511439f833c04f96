"""Checkpoint folders: complete or absent.

    <step>/hopyard.json     the index, written last
    <step>/<name>.pt|.pkl   one file for each bound object
    <step>/random-state.pkl random number generators; random-state-N.pkl: their state as loop N began

A folder is created as `.tmp-<step>-<random>`, synced to the disk, and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from hopyard.backports import dataclass
from hopyard.domain.metric_values import decode_value, encode_values
from hopyard.errors import IntegrityError, SpecError
from hopyard.private_files import make_folder, open_file
from hopyard.sdk import object_state as states
from hopyard.sdk.object_state import StateKind

INDEX_FILE = "hopyard.json"
_RNG_FILE = "random-state.pkl"  # no bound object has a name with `-`
_FORMAT_VERSION = 1
_REMAINS = ".old-"  # the prefix of folders that are being removed


@dataclass(frozen=True, slots=True)
class LoopPosition:
    """The position of a loop: `iterations` completed in the loop `name`, which runs inside `depth` others.

    complete: how many consecutive loops of this name are complete (then `iterations` is that of the last); 0
    means active. rng_state: the random number generators as the loop began, for iterables that draw their
    order at the start. stopped: it is complete because the script left it by `break` or `return`.
    """

    name: str
    depth: int
    iterations: int
    complete: int = 0
    rng_state: dict[str, Any] | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """A checkpoint as read from disk.

    objects: the file of each name. is_untrusted: as in `object_state.read_state`. run_id: the run that saved
    it, "" if unknown. metric_counts: the number of points without a step, by metric. settings: of optimizers
    and schedulers, as the script built them.
    """

    folder: str
    step: int
    positions: tuple[LoopPosition, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    is_untrusted: bool = False
    run_id: str = ""
    metric_counts: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def state_of(self, name: str) -> Any:
        """Returns the state of one object. Raises IntegrityError; SpecError for a value that is not plain in
        another user's checkpoint."""
        try:
            return states.read_state(
                _path_in_checkpoint(self.folder, self.objects[name]), is_untrusted=self.is_untrusted
            )
        except SpecError as error:
            raise SpecError(
                f"`{name}` of the checkpoint of step {self.step}: {error.message}", hints=error.hints
            ) from None

    def rng_states(self) -> dict[str, Any]:
        path = os.path.join(self.folder, _RNG_FILE)
        return states.read_state(path, is_untrusted=self.is_untrusted) if os.path.exists(path) else {}


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def discard_folder(folder: str) -> None:
    """Removes a folder that its readers find by its name. They find all of it or nothing, also if this
    process is killed meanwhile: then the remains have another name, see `clear_remains`."""
    hidden = f"{os.path.dirname(folder)}/{_REMAINS}{os.path.basename(folder)}-{os.urandom(6).hex()}"
    with suppress(FileNotFoundError):
        os.rename(folder, hidden)
        _remove(hidden)


def clear_remains(root: str, prefix: str = "") -> None:
    """Removes what killed processes left in `root` of discarded folders that had names with this prefix."""
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith(_REMAINS + prefix):
                _remove(entry.path)


def write_checkpoint(
    root: str,
    step: int,
    objects: Mapping[str, Any],
    positions: Sequence[LoopPosition],
    metrics: Mapping[str, float],
    *,
    run: str = "",
    metric_counts: Mapping[str, int] | None = None,
    kept: bool = False,
    best_by: str = "",
    settings: Mapping[str, Any] | None = None,
    loop_generators: Mapping[str, Any] | None = None,
) -> str:
    """Saves `objects` under `root`/`step` and returns the folder. Replaces an earlier checkpoint of the same
    step.

    Raises OSError if the disk fails and SpecError for an object that cannot be saved; no files remain then.
    """
    make_folder(root, private_parent=os.path.dirname(root))
    scratch = os.path.join(root, f".tmp-{step}-{os.urandom(6).hex()}")
    make_folder(scratch, private_parent=root)
    try:
        _write_files(
            scratch,
            step,
            objects,
            positions,
            loop_generators or {},
            {
                "metrics": encode_values(metrics),
                "run": run,
                "logged": dict(metric_counts or {}),
                "kept": kept,
                "best_by": best_by,
                "settings": dict(settings or {}),
            },
        )
        _sync_tree(scratch)
        final = os.path.join(root, str(step))
        _publish(scratch, final)
    except BaseException:
        _remove(scratch)
        raise
    _sync(root)
    return final


def _write_files(
    folder: str,
    step: int,
    objects: Mapping[str, Any],
    positions: Sequence[LoopPosition],
    loop_generators: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> None:
    files: dict[str, str] = {}
    for name, value in objects.items():
        if states.state_kind(value) is not StateKind.UNSAVED:
            files[name] = name + states.write_state(
                os.path.join(folder, name), value, states.capture_state(value)
            )
    states.pickle_to(
        os.path.join(folder, _RNG_FILE), {**states.capture_rng(), "loops": dict(loop_generators)}
    )
    for number, position in enumerate(positions):
        if position.rng_state is not None:
            states.pickle_to(os.path.join(folder, f"random-state-{number}.pkl"), position.rng_state)
    loops = [
        {
            "name": p.name,
            "depth": p.depth,
            "done": p.iterations,
            "finished": p.complete,
            "chance": p.rng_state is not None,
            "stopped": p.stopped,
        }
        for p in positions
    ]
    index = {"format": _FORMAT_VERSION, "step": step, "loops": loops, "objects": files, **metadata}
    with open(os.path.join(folder, INDEX_FILE), "w", encoding="utf-8", opener=open_file) as file:
        json.dump(index, file)


def _publish(scratch: str, final: str) -> None:
    while True:
        try:
            os.rename(scratch, final)
            return
        except OSError:
            if not os.path.isdir(final):
                raise
        discard_folder(final)


def _path_in_checkpoint(folder: str, name: str) -> str:
    """Returns the path of a file in a checkpoint. Rejects names that point outside the folder."""
    if "/" in name or name in ("", ".", ".."):
        raise IntegrityError(f"{folder} is not a checkpoint that can be read: `{name}` is not a file name")
    return os.path.join(folder, name)


def read_checkpoint(folder: str, *, is_untrusted: bool = False) -> CheckpointContents:
    """Returns the contents of a checkpoint folder. Raises IntegrityError if it is incomplete. is_untrusted:
    as in `object_state.read_state`."""
    try:
        with open(os.path.join(folder, INDEX_FILE), encoding="utf-8") as file:
            index = json.load(file)
        if index["format"] != _FORMAT_VERSION:
            raise IntegrityError(
                f"{folder}: a checkpoint of format {index['format']!r}", hints=("upgrade hopyard",)
            )
        positions = tuple(
            _read_position(folder, number, fields, is_untrusted=is_untrusted)
            for number, fields in enumerate(index["loops"])
        )
        metric_counts = {str(name): int(count) for name, count in index.get("logged", {}).items()}
        return CheckpointContents(
            folder,
            int(index["step"]),
            positions,
            {name: decode_value(value) for name, value in index["metrics"].items()},
            dict(index["objects"]),
            is_untrusted,
            str(index.get("run", "")),
            metric_counts,
            dict(index.get("settings", {})),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{folder} is not a checkpoint that can be read: {error}") from error


def _read_position(
    folder: str, number: int, fields: Mapping[str, Any], *, is_untrusted: bool
) -> LoopPosition:
    rng_state = (
        states.read_state(os.path.join(folder, f"random-state-{number}.pkl"), is_untrusted=is_untrusted)
        if fields["chance"]
        else None
    )
    return LoopPosition(
        str(fields["name"]),
        int(fields["depth"]),
        int(fields["done"]),
        int(fields["finished"]),
        rng_state,
        fields.get("stopped") is True,
    )


def prune_checkpoints(root: str, count: int) -> None:
    """Removes all but the `count` newest checkpoints, the best one and the kept ones, and the remains of an
    interrupted save."""
    paths: list[tuple[float, str]] = []
    with suppress(OSError), os.scandir(root) as entries:
        paths += [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name.isdecimal()]
    clear_remains(root)
    if len(paths) <= count:
        return
    paths.sort()
    indexes = {path: _read_index(path) for _, path in paths}
    best = _best_path(indexes)
    for _, path in paths[: -count or None]:
        if path != best and not indexes[path].get("kept"):
            discard_folder(path)


def _best_path(indexes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns the best of these checkpoints, which are in the order of saving. Of equal values the earliest
    wins, as on the server."""
    rule = str(next((index["best_by"] for index in [*indexes.values()][::-1] if index.get("best_by")), ""))
    direction, separator, name = rule.partition(":")
    if not separator or direction not in ("max", "min"):
        from hopyard.domain.metric_direction import higher_is_better

        name, direction = rule, "max" if higher_is_better(rule) else "min"
    values = {path: index["metrics"][name] for path, index in indexes.items() if name in index["metrics"]}
    if not rule or not values:
        return None
    return (max if direction == "max" else min)(values, key=lambda path: float(values[path]))


def _read_index(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, INDEX_FILE), encoding="utf-8") as file:
            index = json.load(file)
        values = {name: decode_value(value) for name, value in index["metrics"].items()}
        return {**index, "metrics": {name: value for name, value in values.items() if value == value}}
    except (OSError, ValueError, KeyError, TypeError):
        return {"metrics": {}}


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
