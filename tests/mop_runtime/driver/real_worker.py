"""A real worker for the fake study driver: `python -m tests.mop_runtime.driver.real_worker SETTINGS`.

SETTINGS is a JSON object. Its `folder` holds the code. memory, host: run as if on a separate host, which
other workers reach at that address. unlent: the number of connections for lending a state that fail, as on
a host without free descriptors. damaged: the number of states that lose a bit before another worker
receives them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.mop_runtime.state_transfer import StateServer, send_to_driver
from hopyard.mop_runtime.transport.framing import FramedConnection
from hopyard.mop_runtime.worker import worker
from hopyard.mop_runtime.worker.run_worker import run_worker
from hopyard.trial_state.digest import digest
from tests.mop_runtime.driver.fake_study_driver import spec_of

LAST = 200_000  # a byte in the middle of the arrays of the tests' states

if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    folder = Path(said["study"]["folder"])
    spec = spec_of(said["study"])
    left = said.get("unlent", 0)

    def lend_or_fail(*of: Any) -> None:
        global left
        left -= 1
        if left >= 0:
            raise ConnectionRefusedError("as the test wants it")
        send_to_driver(*of)

    worker.send_to_driver = lend_or_fail
    hurt: set[str] = set()

    class Damaging(StateServer):
        def add_digest(self, name: str, digest_of: str) -> None:
            """Who computes digests beside the training may come to this one late: it would be that of what is
            damaged already."""
            if name not in hurt:
                super().add_digest(name, digest_of)

        def send_state(self, wire: FramedConnection, asked: Mapping[str, Any]) -> None:
            name = str(asked["state"])
            if len(hurt) < said.get("damaged", 0) and name not in hurt and self._store.has(name):
                with self._store.view(name) as view:
                    self.add_digest(name, digest(view))
                hurt.add(name)
                (file,) = Path(said["memory"]).glob(f"hopyard-*/state-{name}")
                with open(file, "r+b") as states:
                    states.seek(LAST)
                    (last,) = states.read(1)
                    states.seek(LAST)
                    states.write(bytes([last ^ 1]))
            super().send_state(wire, asked)

    worker.StateServer = Damaging  # type: ignore[misc]
    own = {"host": said["host"], "memory": Path(said["memory"])} if "memory" in said else {}
    scratch = Path(said["memory"]) / "disk" if own else folder
    run_worker(
        said["driver"],
        bytes.fromhex(said["secret"]),
        spec,
        folder / "data",
        said["worker"],
        scratch,
        code_dir=folder,
        **own,
    )
