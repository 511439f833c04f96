"""`hop.dataset_path`: the local folder of a dataset."""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from hopyard.config.home import Home
from hopyard.errors import NotFound, ServerUnavailable, SpecError

# downloaded datasets stay in the node's cache while this process runs
_open_trees = ExitStack()
atexit.register(_open_trees.close)
_fetched_folders: dict[str, Path] = {}


class DatasetRecorder(Protocol):
    """Records which datasets a script uses."""

    @property
    def offline(self) -> bool: ...

    def record_dataset(self, name: str, version: int) -> None: ...


def find_dataset(name: str | None, recorder: DatasetRecorder) -> Path:
    """Returns the folder of dataset `name`, or of the only one. Raises NotFound with the names of the run's
    datasets.
    """
    folders = _parse_datasets_variable(os.environ.get("HOPYARD_DATASETS"))
    if name is None:
        if len(folders) != 1:
            listed = ", ".join(sorted(folders)) or "none"
            hint = "pass its name: hop.dataset_path(NAME)" if folders else "use `hop run -d NAME`"
            raise SpecError(f"hop.dataset_path: which dataset? This run has {listed}", hints=(hint,))
        return Path(next(iter(folders.values())))
    if name in folders:
        return Path(folders[name])
    from hopyard.domain.ids import check_name

    check_name(name, subject="hop.dataset_path")
    if not recorder.offline:
        listed = f"it has {', '.join(sorted(folders))}" if folders else "it has none"
        raise NotFound(f"this run has no dataset `{name}`; {listed}", hints=(f"`hop run -d {name} …`",))
    if name not in _fetched_folders:
        _fetched_folders[name] = _fetch_newest(name, recorder)
    return _fetched_folders[name]


def _parse_datasets_variable(text: str | None) -> dict[str, str]:
    """Parses `HOPYARD_DATASETS`: a JSON object of folders by name."""
    try:
        folders = json.loads(text or "{}")
        return {str(k): str(v) for k, v in folders.items()}
    except (ValueError, AttributeError) as error:
        raise SpecError(
            "HOPYARD_DATASETS is not a JSON object", hints=('it looks like {"mnist": "/data/mnist"}',)
        ) from error


def _fetch_newest(name: str, recorder: DatasetRecorder) -> Path:
    """Downloads the newest version from the server through this machine's cache; only under plain
    `python`."""
    variable_hint = f"""or set its folder: HOPYARD_DATASETS='{{"{name}": "/its/folder"}}'"""
    if sys.version_info < (3, 11):
        raise NotFound(
            f"the dataset `{name}` cannot be downloaded: this needs Python 3.11 or newer",
            hints=(f"start the script with `hop run -d {name}`, {variable_hint}",),
        )
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import Digest

    home = Home.default()
    try:
        client = connect(start=home.database.exists(), home=home)
    except ServerUnavailable as error:
        raise NotFound(
            f"no dataset `{name}`: {error.message}",
            hints=(f"create it: `hop dataset push {name} FOLDER`", variable_hint),
        ) from error
    try:
        from hopyard.datasets.tree_cache import TreeCache
    except ImportError as error:
        hint = f"install hopyard in this interpreter, {variable_hint}"
        raise NotFound(f"the dataset `{name}` cannot be downloaded: {error}", hints=(hint,)) from error
    version = client.get_dataset_version(name, 0)
    folder = _open_trees.enter_context(
        TreeCache(home.trees).open_tree(Digest(version["manifest"]), client.fetch)
    )
    recorder.record_dataset(name, int(version["number"]))
    return folder
