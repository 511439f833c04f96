"""A real worker for the fake study driver: `python -m tests.mop_runtime.driver.real_worker SETTINGS`.

SETTINGS is a JSON object. Its `folder` holds the code.
memory, host: run as if on a separate host, which other workers reach at that address.
failed_sends: the number of sends of a state that fail, as on a host without free descriptors.
damaged: the number of states that lose a bit before another worker receives them.
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
from tests.mop_runtime.driver.fake_study_driver import make_spec

LAST = 200_000  # offset of a byte in the middle of the arrays of the states

if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    folder = Path(settings["study"]["folder"])
    spec = make_spec(settings["study"])
    remaining_failures = settings.get("failed_sends", 0)

    def send_or_fail(*args: Any) -> None:
        global remaining_failures
        remaining_failures -= 1
        if remaining_failures >= 0:
            raise ConnectionRefusedError("as the test wants it")
        send_to_driver(*args)

    worker.send_to_driver = send_or_fail
    damaged_states: set[str] = set()

    class DamagingStateServer(StateServer):
        def add_digest(self, name: str, digest_of: str) -> None:
            """Skips states that are already damaged: a digest computed now would be that of the damaged
            bytes."""
            if name not in damaged_states:
                super().add_digest(name, digest_of)

        def send_state(self, wire: FramedConnection, request: Mapping[str, Any]) -> None:
            name = str(request["state"])
            if (
                len(damaged_states) < settings.get("damaged", 0)
                and name not in damaged_states
                and self._store.has(name)
            ):
                with self._store.view(name) as view:
                    self.add_digest(name, digest(view))
                damaged_states.add(name)
                (file,) = Path(settings["memory"]).glob(f"hopyard-*/state-{name}")
                with open(file, "r+b") as states:
                    states.seek(LAST)
                    (last,) = states.read(1)
                    states.seek(LAST)
                    states.write(bytes([last ^ 1]))
            super().send_state(wire, request)

    worker.StateServer = DamagingStateServer  # type: ignore[misc]
    own = {"host": settings["host"], "memory": Path(settings["memory"])} if "memory" in settings else {}
    scratch = Path(settings["memory"]) / "disk" if own else folder
    run_worker(
        settings["driver"],
        bytes.fromhex(settings["secret"]),
        spec,
        folder / "data",
        settings["worker"],
        scratch,
        code_dir=folder,
        **own,
    )
