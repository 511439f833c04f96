"""Records which driver process owns which folder below a store, so that the next driver removes folders of a
killed one.

An empty file `owners/FOLDER.BOOT.NAMESPACE.PID.STARTED` marks the owner, from before the folder is created
until after it is removed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hopyard.domain.ids import slug
from hopyard.spark.stores.store import Store

_OWNERS_DIR = "owners"


class ScratchOwnership:
    """select_store: returns the store of a URL. root: the parent of the folders."""

    def __init__(self, spark: Any, select_store: Callable[[str], Store], root: str) -> None:
        self._spark, self._select_store, self._root = spark, select_store, root
        self._owners = select_store(f"{root}/{_OWNERS_DIR}")

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Owns the folder during the block. Raises SpecError if the store is not writable."""
        owner_file = f"{name}.{process_identity()}"
        self._owners.check(self._spark)
        self._owners.create_file(self._spark, owner_file)
        try:
            yield
        finally:
            self._attempt(
                f"{self._owners.url}/{owner_file}", lambda: self._owners.delete_file(self._spark, owner_file)
            )

    def remove_abandoned(self) -> None:
        """Removes folders that certainly have no owner: their driver ran on this host and has ended. Errors
        are only logged."""
        self._attempt(self._owners.url, self._remove_abandoned)

    def _remove_abandoned(self) -> None:
        for owner_file in self._owners.list_files(self._spark):
            name, *owner = owner_file.rsplit(".", 4)
            if slug(name) == name and has_exited(".".join(owner)):  # rejects names that lead out of the store
                folder_store = self._select_store(f"{self._root}/{name}")
                folder_store.remove(self._spark)
                self._owners.delete_file(self._spark, owner_file)
                _log_message(f"{folder_store.url} is removed: the driver that created it was killed")

    @staticmethod
    def _attempt(description: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            _log_message(f"{description} cannot be cleaned up: {error}")


def process_identity() -> str:
    """Returns an identity that is unique over all processes of all hosts."""
    return ".".join((*_host_identity(), str(os.getpid()), _start_time(os.getpid())))


def has_exited(owner: str) -> bool:
    """Returns whether the process ran here and has ended. A process of another host or container, or from
    before a reboot, may still run."""
    boot, _, rest = owner.partition(".")
    namespace, _, process = rest.partition(".")
    pid, _, started = process.partition(".")
    return (
        (boot, namespace) == _host_identity()
        and bool(boot)
        and pid.isdecimal()
        and _start_time(int(pid)) != started
    )


def _host_identity() -> tuple[str, str]:
    """Returns the identity within which pids are comparable; "" if unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, str(Path("/proc/self/ns/pid").stat().st_ino)
    return "", ""


def _start_time(pid: int) -> str:
    """Returns the start time in clock ticks; "" if the process does not exist or is a zombie."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    return ""


def _log_message(text: str) -> None:
    print(f"hopyard: {text}", file=sys.stderr, flush=True)
