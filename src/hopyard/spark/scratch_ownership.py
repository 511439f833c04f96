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
    """select_store: the store of a URL. root: below which the folders are."""

    def __init__(self, spark: Any, select_store: Callable[[str], Store], root: str) -> None:
        self._spark, self._select_store, self._root = spark, select_store, root
        self._owners = select_store(f"{root}/{_OWNERS_DIR}")

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """For as long as the block takes. Raises SpecError where the store cannot be written to."""
        claim = f"{name}.{process_identity()}"
        self._owners.check(self._spark)
        self._owners.create_file(self._spark, claim)
        try:
            yield
        finally:
            self._attempt(f"{self._owners.url}/{claim}", lambda: self._owners.delete_file(self._spark, claim))

    def remove_abandoned(self) -> None:
        """Remove what is certain to be nobody's: its driver ran on this host, and does not any more.
        What cannot be removed is told of, no more."""
        self._attempt(self._owners.url, self._remove_abandoned)

    def _remove_abandoned(self) -> None:
        for claim in self._owners.list_files(self._spark):
            name, *owner = claim.rsplit(".", 4)
            if slug(name) == name and has_exited(".".join(owner)):  # no name leads out of the store
                left = self._select_store(f"{self._root}/{name}")
                left.remove(self._spark)
                self._owners.delete_file(self._spark, claim)
                _log_message(f"{left.url} is removed: the driver that made it was killed")

    @staticmethod
    def _attempt(description: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as failed:
            _log_message(f"{description} cannot be cleaned up: {failed}")


def process_identity() -> str:
    """Returns an identity that is unique over all processes of all hosts."""
    return ".".join((*_host_identity(), str(os.getpid()), _start_time(os.getpid())))


def has_exited(owner: str) -> bool:
    """Whether the process ran here, and ended. One of another host, of another container, or from before this
    host began anew may run."""
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
    """Within which numbers of processes mean the same; "" where that cannot be known."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, str(Path("/proc/self/ns/pid").stat().st_ino)
    return "", ""


def _start_time(pid: int) -> str:
    """When it did, in ticks of the host's clock; "" where there is none, but for what its parent has still to
    take note of."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    return ""


def _log_message(text: str) -> None:
    print(f"hopyard: {text}", file=sys.stderr, flush=True)
