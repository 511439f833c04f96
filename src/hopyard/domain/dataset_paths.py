"""The paths at which a script finds its datasets, and `{dataset:NAME}` in commands and variables."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from hopyard.domain.run import DatasetRef, RunSpec
from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_LEVELS_UP = 2  # of a relative path: the folders above the working folder that belong to the run
# folders in which no dataset can be mounted: programs need what is in them
_SYSTEM_FOLDERS = (
    "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/boot", "/run",
)  # fmt: skip
_OPEN_FOLDERS = ("/dev/shm", "/run/media", "/run/user")  # they hold files of users
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_REFERENCE = re.compile(rf"\{{(\{{dataset:{_NAME}\}})\}}|\$?\{{dataset:({_NAME})\}}")
# names of files of the replica beside the working folder
_RESERVED_NAMES = frozenset(
    {
        "checkpoints", "ended", "event_files", "exit_text", "folders.lock", "folders.ready", "lock", "orphan",
        "param-reads", "replica.log", "reports", "restore", "restored", "run", "run-folder.json",
        "spec.json", "status.json", "stop", "streams", "study.json", "token", "work",
    }
)  # fmt: skip


def normalise_path(path: str, *, subject: str) -> str:
    """Returns the path without `.`, empty parts and inner `..`. Raises SpecError for a path at which no
    dataset can be placed."""
    if not path:
        return ""
    normal = posixpath.normpath(path)
    if normal.startswith("//"):
        normal = normal[1:]
    if not path.isprintable():
        raise SpecError(f"{subject}: `{escape(path)}` contains control characters")
    if normal in ("/", ".") or normal.endswith(".."):
        raise SpecError(
            f"{subject}: `{path}` would hide the whole folder behind the dataset",
            hints=("give a folder of its own, for example mnist=data or mnist:/data/mnist",),
        )
    if normal.startswith("/"):
        if any(_is_within(normal, folder) for folder in _SYSTEM_FOLDERS) and not any(
            _is_within(normal, folder) and normal != folder for folder in _OPEN_FOLDERS
        ):
            raise SpecError(
                f"{subject}: `{path}` is a folder of the system",
                hints=("give another folder, for example /data/mnist",),
            )
        return normal
    levels = sum(part == ".." for part in normal.split("/"))
    if levels > MAX_LEVELS_UP:
        raise SpecError(
            f"{subject}: `{path}` leads out of the folders of a run",
            hints=(f"use at most {MAX_LEVELS_UP} `..`, or an absolute path: mnist:/data/mnist",),
        )
    first = normal.split("/")[levels]
    if levels and (first in _RESERVED_NAMES or first.isdecimal()):
        raise SpecError(
            f"{subject}: `{path}` is a file of Hopyard beside the working folder",
            hints=("choose another name, or an absolute path: mnist:/data/mnist",),
        )
    return normal


def _is_within(path: str, folder: str) -> bool:
    return PurePath(path).is_relative_to(folder)


def check_dataset_paths(datasets: Iterable[DatasetRef]) -> None:
    """Raises SpecError for a path that is not normal, and for two datasets at one place."""
    placed: dict[str, str] = {}
    for index, ref in enumerate(datasets):
        if not ref.path:
            continue
        subject = f"datasets.{index}.path"
        if normalise_path(ref.path, subject=subject) != ref.path:
            raise SpecError(f"{subject}: `{ref.path}` is not in normal form")
        for path, name in placed.items():
            if _is_within(path, ref.path) or _is_within(ref.path, path):
                raise SpecError(
                    f"{subject}: `{ref.path}` is taken by the dataset `{name}`",
                    hints=("give each dataset a folder of its own",),
                )
        placed[ref.path] = ref.name


def check_dataset_names(spec: RunSpec) -> None:
    """Raises SpecError for `{dataset:NAME}` with a dataset that the run does not have."""
    names = {ref.name for ref in spec.datasets}
    texts = [
        (f"roles.{index}.command", word) for index, role in enumerate(spec.roles) for word in role.command
    ]
    texts += [(f"env.{name}", text) for name, text in spec.env.items()]
    texts += [(f"params.{name}", value) for name, value in spec.params.items() if isinstance(value, str)]
    for path, text in texts:
        for name in _references(text):
            if name not in names:
                raise SpecError(
                    f"{path}: `{{dataset:{name}}}` is not a dataset of the run",
                    hints=(f"add `-d {name}`",),
                )


def _references(text: str) -> Iterator[str]:
    return (name for _, name in _REFERENCE.findall(text) if name)


def names_dataset(value: object) -> bool:
    """Returns whether a value contains the folder of a dataset, which differs from node to node."""
    return isinstance(value, str) and any(_references(value))


def fill_dataset_paths(text: str, folders: Mapping[str, object]) -> str:
    """Returns the text with the folder of each dataset in place of `{dataset:NAME}`. `{{dataset:NAME}}` is
    the text `{dataset:NAME}`, as in a command."""
    return _REFERENCE.sub(lambda found: found[1] or str(folders.get(found[2], found[0])), text)


def dataset_variable(name: str) -> str:
    """Returns the variable that holds the folder of a dataset: `HOPYARD_DATASET_MNIST_TV` for `mnist-tv`."""
    return "HOPYARD_DATASET_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()
