"""The files of the working folder that the next attempt of a run begins with: a script's own checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hopyard.errors import SpecError

# names that frameworks and people give to checkpoints, of a file or of a folder above it
DEFAULT_PATTERNS = ("*ckpt*", "*checkpoint*", "*snapshot*")
# parts of paths that are never kept: they are written again, or would be read twice
_EXCLUDED_PARTS = ("*.tfevents.*", "__pycache__", ".ipynb_checkpoints", "wandb", "mlruns", "*.py", "*.tmp")


# results and logs beside checkpoints, which are written without any progress
_LOG_NAMES = ("*.log", "*.out", "*.err", "*.txt", "*.csv")
# the weights in a folder with a step in its name, such as `epoch_3` of Keras and `global_step10`
_STEP_FOLDER = re.compile(
    r"(?!\.?tmp)(?:.*[^a-z])?(?:epoch|ep|step|iter(?:ation)?)[-_.=]?\d.*", re.IGNORECASE
)
_WEIGHT_SUFFIXES = (".h5", ".keras", ".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".msgpack")


def is_checkpoint(path: str, patterns: Sequence[str] = ()) -> bool:
    """Returns whether a file of the stored tree, below `run/` or `work/`, is a checkpoint of the script: when
    it changes, the run has made progress. patterns: as in `is_kept`."""
    inner = path.partition("/")[2]
    parts = inner.split("/")
    if any(_matches_path(parts, pattern) for pattern in patterns):
        return True
    name = parts[-1].lower()
    if is_kept(inner):
        return not any(fnmatchcase(name, log) for log in _LOG_NAMES)
    return name.endswith(_WEIGHT_SUFFIXES) and any(_STEP_FOLDER.fullmatch(part) for part in parts[:-1])


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises SpecError for a pattern of files outside of the working folder, which are never kept."""
    for pattern in patterns:
        if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
            raise SpecError(
                f"checkpoints: `{pattern}` is outside of the working folder, so its files are not kept",
                hints=(
                    "let the script save below its working folder or $HOPYARD_RUN_DIR, and give a name or a "
                    "pattern there: `out`, 'model-*.pt'",
                ),
            )


def is_kept(path: str, patterns: Sequence[str] = ()) -> bool:
    """Returns whether the next attempt begins with this file, a path below the working folder.

    patterns: of the user. A pattern without `/` is compared with each part of the path, another one with the
    whole path and with each folder above it. `**` is any number of folders.
    """
    parts = path.split("/")
    if any(_matches_path(parts, pattern) for pattern in patterns):
        return True
    if any(fnmatchcase(part, excluded) for part in parts for excluded in _EXCLUDED_PARTS):
        return False
    return any(fnmatchcase(part.lower(), pattern) for part in parts for pattern in DEFAULT_PATTERNS)


def _matches_path(parts: Sequence[str], pattern: str) -> bool:
    wanted = [part for part in pattern.split("/") if part not in ("", ".")]
    if len(wanted) == 1 and wanted != ["**"]:
        return any(fnmatchcase(part, wanted[0]) for part in parts)
    reached = {0}  # of `parts`: those that the patterns before this one cover
    for part in wanted:
        if part == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], part)}
        if not reached:
            return False
    return bool(reached - {0})
