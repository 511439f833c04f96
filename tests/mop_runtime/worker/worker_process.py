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
    settings = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    folder = Path(settings["folder"])
    mop = MopSpec(
        "code.py", settings["workers"], "digits", PartitionPlan(settings["workers"]), deterministic=True
    )
    spec = StudySpec("study", Space(()), "loss", Goal.MIN, Parallel.MOP, mop=mop)
    signal.signal(signal.SIGTERM, exit_on_signal)
    reason = run_worker(
        settings["address"],
        bytes.fromhex(settings["secret"]),
        spec,
        folder / "data",
        settings["worker"],
        folder / "scratch",
        code_dir=folder / "code",
        memory=Path(settings["memory"]),
        reconnect_timeout_s=settings["reconnect_timeout_s"],
    )
    print(f"left: {reason}")


if __name__ == "__main__":
    main()
