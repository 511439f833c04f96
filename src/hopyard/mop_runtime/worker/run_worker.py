"""Runs a worker from its first message to the end of the study."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hopyard.domain.ids import WorkerId
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError
from hopyard.mop_runtime import watchdog
from hopyard.mop_runtime.worker import process_setup
from hopyard.mop_runtime.worker.open_partitions import OpenDataset, open_dataset_folder
from hopyard.mop_runtime.worker.worker import Worker
from hopyard.private_files import make_folder
from hopyard.trial_state.shared_memory_store import SHARED_MEMORY_DIR, StateStore

RECONNECT_TIMEOUT_S = 600.0  # without a driver; a driver that was killed is restarted within seconds


def run_worker(
    address: str,
    secret: bytes,
    spec: StudySpec,
    open_dataset: Path | OpenDataset,
    worker: str,
    scratch_dir: Path,
    *,
    code_dir: Path | None = None,
    host: str = "",
    memory: Path = SHARED_MEMORY_DIR,
    reconnect_timeout_s: float = RECONNECT_TIMEOUT_S,
    untrusted: bool = False,
) -> str:
    """Works for the driver at `address` (`host:port`) until it sends a shutdown; returns its reason.

    open_dataset: the folder of the dataset, or a function that opens partitions by their plan. worker: a name
    that is unique in the study. scratch_dir: a folder on disk that all workers of this host share; indexes of
    partitions are stored there. code_dir: the folder of the user's code (default: that of the process). host:
    the address under which other workers reach this one (default: the address that the driver sees). memory:
    the folder of shared memory files. untrusted: the study began with states of another user, so only
    tensors, arrays and plain values are read from states.

    Must be called on the main thread of a process of its own. Raises SpecError if the study has no workers,
    ServerUnavailable if no driver answers for `reconnect_timeout_s`.
    """
    if spec.mop is None:
        raise SpecError("the study trains each trial as a run of its own: it has no workers")
    watchdog.start_heartbeat()
    process_setup.apply_determinism(spec.mop.deterministic, spec.mop.threads)
    make_folder(scratch_dir)
    if isinstance(open_dataset, Path):
        open_dataset = open_dataset_folder(open_dataset, scratch_dir / "partitions", dataset=spec.mop.dataset)
    store = StateStore(hashlib.blake2b(secret, digest_size=8).hexdigest(), scratch_dir, memory=memory)
    try:
        instance = Worker(
            address,
            secret,
            store,
            open_dataset,
            WorkerId(worker),
            code_dir or Path.cwd(),
            host,
            reconnect_timeout_s,
            untrusted=untrusted,
        )
        try:
            return instance.run()
        finally:
            instance.close()
    finally:
        store.close()
