"""Groups the files that a script saved into checkpoints: a file, a folder, or files with a common name.

A folder is one checkpoint if its name has a step (`checkpoint-500`, `global_step10`, `epoch_3`), if it is
named as one (`last.ckpt`), or if it has a file that frameworks write only into such a folder. It is whole
when its last file is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from hopyard.domain.checkpoint_files import is_checkpoint

# the steps in names, the first that fits: `step=40` before `epoch=3`
_STEP_PATTERNS = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        r"step[-_.=]?(\d{1,15})(?!\d)",
        r"iter(?:ation)?[-_.=]?(\d{1,15})(?!\d)",
        r"(?:checkpoint|ckpt|chkpt|snapshot)[-_.=]?(\d{1,15})(?!\d)",
        r"(?<![a-z])(?:epoch|ep)[-_.=]?(\d{1,15})(?!\d)",
    )
)
_PLAIN_STEP = re.compile(r"(\d{1,15})")  # a whole name: `checkpoints/500`
_PART_STEP = re.compile(r"(?:^|[-_.])(\d{1,15})(?=[-_.]|\Z)")  # `weights.07-0.25.h5`, `model-12.pt`
_PARENT_OF_STEPS = re.compile(r"checkpoint|ckpt|snapshot", re.IGNORECASE)
# files that are written only into the folder of one checkpoint: of Hugging Face, accelerate, PyTorch's
# distributed checkpoints, Keras
_FOLDER_MARKERS = (
    "trainer_state.json", "random_states_*.pkl", "optimizer.bin", "*.index.json", ".metadata",
    "saved_model.pb", "training_metadata.json", "zero_pp_rank_*", "*.distcp",
)  # fmt: skip
_FOLDER_SUFFIX = ".ckpt"  # of Lightning: a sharded checkpoint is a folder
# TensorFlow: `model-5.index`, `model-5.data-00000-of-00001`
_TF_PART = re.compile(r"(.+)\.(?:index|data-\d{5}-of-\d{5})")
# the names of the newest checkpoint, and settings beside checkpoints
_POINTER_NAMES = ("checkpoint", "latest", "latest_checkpointed_iteration.txt")
_SETTINGS_SUFFIXES = (".json", ".jsonl", ".yaml", ".yml", ".toml", ".md", ".txt", ".csv", ".log", ".png")
# what a framework renames when it is complete: of Hugging Face, Orbax, and many scripts
_TEMPORARY_NAMES = ("*.tmp", "*.part", "*.incomplete", "tmp-*", ".tmp-*", "*-checkpoint-tmp-*")
# written last, if the folder has a file of the first kind
_LAST_FILES = (
    (("training_args.bin", "optimizer.pt", "scheduler.pt"), "trainer_state.json"),
    (("*.distcp",), ".metadata"),
    (("variables.data-*", "variables.index"), "saved_model.pb"),
)


_KERAS_LAST = ("training_metadata.json",)  # of `BackupAndRestore`; its weights have any name


def group_checkpoints(paths: Iterable[str], patterns: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Returns the files of each checkpoint by its path. paths: of kept files, below `run/` or `work/`.
    patterns: as in `checkpoint_files.is_kept`. Settings and logs belong to no checkpoint."""
    kept = sorted(path for path in paths if not _is_temporary(path))
    files = [path for path in kept if is_checkpoint(path, tuple(patterns))]
    folders = _marked_folders(files)
    groups: dict[str, list[str]] = {}
    for path in files:
        unit = _unit_of(path, folders)
        if unit == path and path.rpartition("/")[2] in _POINTER_NAMES:
            continue
        groups.setdefault(unit, []).append(path)
    counted = set(files)
    for path in kept:  # texts in the folder of a checkpoint, such as a vocabulary
        unit = path if path in counted else _unit_of(path, folders)
        if unit != path and unit in groups:
            groups[unit].append(path)
    weights = {unit.rpartition("/")[0] for unit in groups if not unit.endswith(_SETTINGS_SUFFIXES)}
    return {unit: tuple(members) for unit, members in groups.items() if not _is_setting(unit, weights)}


def step_of(checkpoint: str) -> int | None:
    """Returns the step in the name of a checkpoint; None without one."""
    name = checkpoint.rpartition("/")[2]
    for pattern in _STEP_PATTERNS:
        if found := pattern.search(name):
            return int(found[1])
    if _PLAIN_STEP.fullmatch(name):
        return int(name)
    found = _PART_STEP.search(name)
    return int(found[1]) if found else None


def is_whole(files: Collection[str]) -> bool:
    """Returns whether the files of a checkpoint have the one that its framework writes last."""
    names = [path.rpartition("/")[2] for path in files]
    return all(
        last in names
        for firsts, last in _LAST_FILES
        if any(fnmatchcase(name, first) for first in firsts for name in names)
    )


def has_last_file(files: Collection[str]) -> bool:
    """Returns whether a folder has a file that its framework writes last, so that no other one follows."""
    names = [path.rpartition("/")[2] for path in files]
    return is_whole(files) and any(
        last in names for last in (*_KERAS_LAST, *(last for _, last in _LAST_FILES))
    )


def order_by_step(checkpoints: Iterable[str]) -> list[str]:
    """Returns paths with the largest step first; those without a step are last."""
    steps = {path: step_of(path) for path in checkpoints}
    return sorted(steps, key=lambda path: (steps[path] is None, -(steps[path] or 0), path))


def _is_temporary(path: str) -> bool:
    return any(fnmatchcase(part, name) for part in path.split("/")[1:] for name in _TEMPORARY_NAMES)


def _marked_folders(files: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for path in files:
        folder, _, name = path.rpartition("/")
        if "/" in folder and any(fnmatchcase(name, marker) for marker in _FOLDER_MARKERS):
            found.add(folder)
    return frozenset(found)


def _unit_of(path: str, folders: Collection[str]) -> str:
    parts = path.split("/")
    for count in range(2, len(parts)):  # the first part is `run` or `work`
        folder = "/".join(parts[:count])
        if folder in folders or _is_checkpoint_folder(parts[count - 1], parts[count - 2]):
            return folder
    found = _TF_PART.fullmatch(path)
    return found[1] if found else path


def _is_checkpoint_folder(name: str, parent: str) -> bool:
    if _PLAIN_STEP.fullmatch(name):
        return _PARENT_OF_STEPS.search(parent) is not None
    return name.endswith(_FOLDER_SUFFIX) or any(pattern.search(name) for pattern in _STEP_PATTERNS)


def _is_setting(unit: str, weight_folders: Collection[str]) -> bool:
    """Returns whether this file is no checkpoint itself: a setting, with a checkpoint beside it.
    weight_folders: those with a checkpoint whose name is not that of a setting."""
    if not unit.endswith(_SETTINGS_SUFFIXES):
        return False
    return not unit.endswith((".json", ".jsonl")) or unit.rpartition("/")[0] in weight_folders
