"""Which driver's process works with which folder below a store, so that those of one that was killed are
removed by the next.

An empty file `owners/FOLDER.BOOT.NAMESPACE.PID.STARTED` says so, from before the folder is made until after
it is removed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hopyard.domain.ids import slug
from hopyard.on_spark.stores.store import Store

_FOLDER = "owners"


class Claims:
    """store_of: the store of a URL. root: below which the folders are."""

    def __init__(self, spark: Any, store_of: Callable[[str], Store], root: str) -> None:
        self._spark, self._store_of, self._root = spark, store_of, root
        self._owners = store_of(f"{root}/{_FOLDER}")

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """For as long as the block takes. Raises SpecError where the store cannot be written to."""
        claim = f"{name}.{this_process()}"
        self._owners.check(self._spark)
        self._owners.put(self._spark, claim)
        try:
            yield
        finally:
            self._try(f"{self._owners.url}/{claim}", lambda: self._owners.drop(self._spark, claim))

    def sweep(self) -> None:
        """Remove what is certain to be nobody's: its driver ran on this host, and does not any more.
        What cannot be removed is told of, no more."""
        self._try(self._owners.url, self._sweep)

    def _sweep(self) -> None:
        for claim in self._owners.names(self._spark):
            name, *owner = claim.rsplit(".", 4)
            if slug(name) == name and is_gone(".".join(owner)):  # no name leads out of the store
                left = self._store_of(f"{self._root}/{name}")
                left.remove(self._spark)
                self._owners.drop(self._spark, claim)
                _say(f"{left.url} is removed: the driver that made it was killed")

    @staticmethod
    def _try(what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as failed:
            _say(f"{what} cannot be tidied up: {failed}")


def this_process() -> str:
    """No other process of any host has ever the same."""
    return ".".join((*_host(), str(os.getpid()), _started(os.getpid())))


def is_gone(owner: str) -> bool:
    """Whether the process ran here, and ended. One of another host, of another container, or from before this
    host began anew may run."""
    boot, _, rest = owner.partition(".")
    namespace, _, process = rest.partition(".")
    pid, _, started = process.partition(".")
    return (boot, namespace) == _host() and bool(boot) and pid.isdecimal() and _started(int(pid)) != started


def _host() -> tuple[str, str]:
    """Within which numbers of processes mean the same; "" where that cannot be known."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, str(Path("/proc/self/ns/pid").stat().st_ino)
    return "", ""


def _started(pid: int) -> str:
    """When it did, in ticks of the host's clock; "" where there is none, but for what its parent has still to
    take note of."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    return ""


def _say(text: str) -> None:
    print(f"hopyard: {text}", file=sys.stderr, flush=True)
