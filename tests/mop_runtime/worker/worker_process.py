"""A worker process: `python -m tests.mop_runtime.worker.worker_process SETTINGS`, where SETTINGS is JSON."""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from hopyard.domain.space import Space
from hopyard.domain.study import Goal, MopSpec, Parallel, PartitionPlan, StudySpec
from hopyard.mop_runtime.worker.main import exit_on_signal
from hopyard.mop_runtime.worker.run_worker import run_worker


def main() -> None:
    said = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    folder = Path(said["folder"])
    mop = MopSpec("code.py", said["workers"], "digits", PartitionPlan(said["workers"]), deterministic=True)
    spec = StudySpec("study", Space(()), "loss", Goal.MIN, Parallel.MOP, mop=mop)
    signal.signal(signal.SIGTERM, exit_on_signal)
    reason = run_worker(
        said["address"],
        bytes.fromhex(said["secret"]),
        spec,
        folder / "data",
        said["worker"],
        folder / "scratch",
        code_dir=folder / "code",
        memory=Path(said["memory"]),
        reconnect_timeout_s=said["patience_s"],
    )
    print(f"left: {reason}")


if __name__ == "__main__":
    main()
