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
_in_use = ExitStack()
atexit.register(_in_use.close)
_brought: dict[str, Path] = {}


class Recorder(Protocol):
    """Who wants to know what data a script uses."""

    @property
    def offline(self) -> bool: ...

    def used_dataset(self, name: str, version: int) -> None: ...


def find_dataset(name: str | None, recorder: Recorder) -> Path:
    """The folder of dataset `name`, or of the only one. Raises NotFound with the names that there are."""
    there = _given(os.environ.get("HOPYARD_DATASETS"))
    if name is None:
        if len(there) != 1:
            listed = ", ".join(sorted(there)) or "none"
            hint = "name it: hop.dataset_path(NAME)" if there else "`hop run -d NAME` gives it one"
            raise SpecError(f"hop.dataset_path: which dataset? This run has {listed}", hints=(hint,))
        return Path(next(iter(there.values())))
    if name in there:
        return Path(there[name])
    from hopyard.domain.ids import check_name

    check_name(name, what="hop.dataset_path")
    if not recorder.offline:
        listed = f"it has {', '.join(sorted(there))}" if there else "it has none"
        raise NotFound(f"this run has no dataset `{name}`; {listed}", hints=(f"`hop run -d {name} …`",))
    if name not in _brought:
        _brought[name] = _bring(name, recorder)
    return _brought[name]


def _given(text: str | None) -> dict[str, str]:
    """What `HOPYARD_DATASETS` says: a JSON object of folders by name."""
    try:
        found = json.loads(text or "{}")
        return {str(k): str(v) for k, v in found.items()}
    except (ValueError, AttributeError) as bad:
        raise SpecError(
            "HOPYARD_DATASETS is not a JSON object", hints=('it looks like {"mnist": "/data/mnist"}',)
        ) from bad


def _bring(name: str, recorder: Recorder) -> Path:
    """The newest version from the server, through this machine's cache; under plain `python` only."""
    from hopyard.domain.ids import Digest
    from hopyard.sdk.connect import connect

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
        from hopyard.datasets.cache import TreeCache
    except ImportError as lacking:
        hint = f"install hopyard in this interpreter, {by_hand}"
        raise NotFound(f"the dataset `{name}` cannot be brought here: {lacking}", hints=(hint,)) from lacking
    version = client.get(f"/datasets/{name}/versions/0")
    folder = _in_use.enter_context(TreeCache(home.trees).use(Digest(version["manifest"]), client.fetch))
    recorder.used_dataset(name, int(version["number"]))
    return folder
