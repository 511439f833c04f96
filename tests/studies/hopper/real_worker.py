"""A real worker for the toy driver: `python -m tests.studies.hopper.real_worker SETTINGS`, a JSON object. The code is that in `folder`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from hopyard.studies.worker.run import run_worker
from tests.studies.hopper.toy_driver import spec_of

if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    folder = Path(said["study"]["folder"])
    spec = spec_of(said["study"])
    run_worker(said["driver"], bytes.fromhex(said["secret"]), spec, folder / "data", said["worker"], folder, code=folder)
