"""Reports the packages that the first interpreter of a run has, as they are at its start.

The names of folders are enough, so the report costs a few milliseconds. The import of `importlib.metadata`
alone would cost more.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK = "packages-reported"  # in the folder of the replica
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_SUFFIXES = (".dist-info", ".egg-info")
_MAX_PACKAGES = 3000
_MAX_LENGTH = 200  # of a name, and of a version


def report_packages() -> None:
    """Appends one event to the streams of the replica, for the first interpreter alone."""
    folder = os.environ["HOPYARD_REPLICA_DIR"]
    try:
        os.close(os.open(os.path.join(folder, _MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        events = os.open(os.path.join(folder, "streams", "events"), os.O_WRONLY | os.O_APPEND)
    except OSError:
        return  # another interpreter was first, or the folder is not that of a replica
    import json

    packages = {"python": ".".join(map(str, sys.version_info[:3])), **find_packages(sys.path)}
    event = {"t": time.time(), "kind": "packages", "values": packages}
    try:
        os.write(events, json.dumps(event).encode() + b"\n")
    finally:
        os.close(events)


def find_packages(path: Iterable[str]) -> dict[str, str]:
    """Returns name and version of the packages in the folders of an import path. The first folder counts."""
    packages: dict[str, str] = {}
    for folder in path:
        if os.path.basename(folder) not in _PACKAGE_FOLDERS:
            continue
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            if entry.endswith(_SUFFIXES):
                # `name-1.0-py3.11.egg-info` of older tools
                name, _, version = entry.rpartition(".")[0].partition("-")
                version = version.partition("-")[0]
                if version and len(name) <= _MAX_LENGTH >= len(version) and len(packages) < _MAX_PACKAGES:
                    packages.setdefault(plain_name(name), version)
    return dict(sorted(packages.items()))


def plain_name(name: str) -> str:
    """Returns the name of a package as an index has it."""
    return name.lower().replace("_", "-").replace(".", "-")
