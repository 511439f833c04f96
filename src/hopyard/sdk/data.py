"""`hop.dataset_path`: where a dataset lies on this machine."""

from __future__ import annotations

import atexit
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from hopyard.config.home import Home
from hopyard.errors import NotFound, ServerUnavailable, SpecError

# datasets that were brought here stay in the node's cache as long as this process lives
_open_trees = ExitStack()
atexit.register(_open_trees.close)
_fetched_folders: dict[str, Path] = {}


class DatasetRecorder(Protocol):
    """Who wants to know what data a script uses."""

    @property
    def offline(self) -> bool: ...

    def record_dataset(self, name: str, version: int) -> None: ...


def find_dataset(name: str | None, recorder: DatasetRecorder) -> Path:
    """The folder of dataset `name`, or of the only one. Raises NotFound with the names that there are."""
    there = _parse_datasets_variable(os.environ.get("HOPYARD_DATASETS"))
    if name is None:
        if len(there) != 1:
            listed = ", ".join(sorted(there)) or "none"
            hint = "name it: hop.dataset_path(NAME)" if there else "`hop run -d NAME` gives it one"
            raise SpecError(f"hop.dataset_path: which dataset? This run has {listed}", hints=(hint,))
        return Path(next(iter(there.values())))
    if name in there:
        return Path(there[name])
    from hopyard.domain.ids import check_name

    check_name(name, subject="hop.dataset_path")
    if not recorder.offline:
        listed = f"it has {', '.join(sorted(there))}" if there else "it has none"
        raise NotFound(f"this run has no dataset `{name}`; {listed}", hints=(f"`hop run -d {name} …`",))
    if name not in _fetched_folders:
        _fetched_folders[name] = _fetch_newest(name, recorder)
    return _fetched_folders[name]


def _parse_datasets_variable(text: str | None) -> dict[str, str]:
    """What `HOPYARD_DATASETS` says: a JSON object of folders by name."""
    try:
        found = json.loads(text or "{}")
        return {str(k): str(v) for k, v in found.items()}
    except (ValueError, AttributeError) as bad:
        raise SpecError(
            "HOPYARD_DATASETS is not a JSON object", hints=('it looks like {"mnist": "/data/mnist"}',)
        ) from bad


def _fetch_newest(name: str, recorder: DatasetRecorder) -> Path:
    """The newest version from the server, through this machine's cache; under plain `python` only."""
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import Digest

    home = Home.default()
    by_hand = f"""or say where it is: HOPYARD_DATASETS='{{"{name}": "/its/folder"}}'"""
    try:
        client = connect(start=home.database.exists(), home=home)
    except ServerUnavailable as gone:
        raise NotFound(
            f"no dataset `{name}`: {gone.message}",
            hints=(f"`hop dataset push {name} FOLDER` makes it one", by_hand),
        ) from gone
    try:
        from hopyard.datasets.tree_cache import TreeCache
    except ImportError as lacking:
        hint = f"install hopyard in this interpreter, {by_hand}"
        raise NotFound(f"the dataset `{name}` cannot be brought here: {lacking}", hints=(hint,)) from lacking
    version = client.get(f"/datasets/{name}/versions/0")
    folder = _open_trees.enter_context(
        TreeCache(home.trees).open_tree(Digest(version["manifest"]), client.fetch)
    )
    recorder.record_dataset(name, int(version["number"]))
    return folder
