"""Telling a home of Hopyard by what lies in it: it holds tokens and keys, so no tree takes it in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

# Any of these sets tells a home: of a server, of one that never ran, of a client of another server. Names
# that others use, too, need company.
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
# What lies in a home, see `config.home`: left out where the home is the packed folder itself, in which the
# user's own files may lie as well.
_HOME_ENTRIES = _MARKER_NAMES | {
    "mark",
    "server.json",
    "config.yaml",
    "restored.json",
    "logs",
    "blobs",
    "streams",
    "attempts",
    "cache",
    "offline",
    "kept",
    "partitions",
}
# of a replica's folder, see `domain.replica`
_HOME_ENTRIES |= {"lock", "stop", "study.json", "checkpoints", "restore", "trees", "home"}


def is_home(names: Iterable[str]) -> bool:
    """Whether a folder with these entries is a home."""
    there = _MARKER_NAMES.intersection(names)
    return bool(there) and any(mark <= there for mark in _HOME_MARKERS)


def is_home_entry(name: str) -> bool:
    """Whether an entry of a home is Hopyard's, with its temporary files and those of its database."""
    return name in _HOME_ENTRIES or name.startswith(("hopyard.db-", "."))


def is_sdk_link(path: str) -> bool:
    """Whether this is the link by which runs import the SDK, `cache/sdk/hopyard`: where it is, a part of a
    home is."""
    folder, name = os.path.split(path)
    return (
        name == "hopyard"
        and os.path.basename(folder) == "sdk"
        and Path(os.readlink(path), "sdk", "api.py").is_file()
    )
