"""Detects homes of Hopyard by their entries. Homes hold tokens and keys, so no tree includes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

# Each of these sets identifies a home: of a server, of a server that never ran, of a client of another
# server. Names that other programs use, too, count only in combination.
_HOME_MARKERS = (
    frozenset({"hopyard.db"}),
    frozenset({"signing-keys.json"}),
    frozenset({"server.sock", "server.lock"}),
    frozenset({"start.lock", "server.lock"}),
    frozenset({"identity.json", "token"}),
    frozenset({"identity.json", "server.lock"}),
    frozenset({"login.json", "cache"}),
    frozenset({"login.json", "offline"}),
    frozenset({"spec.json", "status.json", "streams"}),  # a replica's folder, with the token of its run
)
_MARKER_NAMES = frozenset().union(*_HOME_MARKERS)
# The entries of a home, see `config.home`. They are skipped where the home is the packed folder itself, which
# may also hold the user's own files.
_HOME_ENTRIES = _MARKER_NAMES | {
    "mark",
    "server.json",
    "config.yaml",
    "restored.json",
    "logs",
    "blobs",
    "streams",
    "attempts",
    "run-folders",
    "cache",
    "offline",
    "kept",
    "partitions",
}
# of a replica's folder, see `domain.replica`
_HOME_ENTRIES |= {"lock", "stop", "study.json", "checkpoints", "restore", "trees", "home"}


def is_home(names: Iterable[str]) -> bool:
    """Returns whether a folder with these entries is a home."""
    markers = _MARKER_NAMES.intersection(names)
    return bool(markers) and any(marker_set <= markers for marker_set in _HOME_MARKERS)


def is_home_entry(name: str) -> bool:
    """Returns whether an entry of a home belongs to Hopyard, temporary files and files of its database
    included."""
    return name in _HOME_ENTRIES or name.startswith(("hopyard.db-", "."))


def is_sdk_link(path: str) -> bool:
    """Returns whether this is `cache/sdk/hopyard`, the link by which runs import the SDK. It exists only in a
    part of a home."""
    folder, name = os.path.split(path)
    return (
        name == "hopyard"
        and os.path.basename(folder) == "sdk"
        and Path(os.readlink(path), "sdk", "api.py").is_file()
    )
