"""The process of a replica of role `worker`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from hopyard.errors import HopyardError, SpecError
from hopyard.mop_runtime.transport.framing import join_address
from hopyard.mop_runtime.worker import process_setup
from hopyard.mop_runtime.worker.run_worker import run_worker
from hopyard.mop_runtime.worker.unit_failure import WorkerExit
from hopyard.studies.process_context import load_process_context


def main() -> int:
    """Returns the exit code. Raises SpecError if this process is not a worker of a study, ServerUnavailable
    without a driver."""
    context = load_process_context()
    mop = context.spec.mop
    if mop is None or context.dataset_dir is None:
        raise SpecError(f"the study `{context.spec.name}` has no dataset for workers to keep partitions of")
    process_setup.restart_with_environment(process_setup.environment(mop.deterministic, mop.threads))
    signal.signal(signal.SIGTERM, exit_on_signal)
    run_worker(
        join_address(*context.driver_address),
        context.secret,
        context.spec,
        context.dataset_dir,
        f"worker-{context.role_rank}",
        context.gang_dir / "states",
        untrusted=context.untrusted,
    )
    return 0


def run() -> int:
    """Runs `main` and prints errors for users."""
    try:
        return main()
    except HopyardError as error:
        for hint in error.hints:
            print(f"hint: {hint}", file=sys.stderr)
        # last: it becomes the replica's exit reason
        print(f"error: {error.message}", file=sys.stderr, flush=True)
        return 1


def exit_on_signal(_signal: int, _frame: FrameType | None) -> None:
    """Raises an exception at SIGTERM, so that shared memory is released."""
    raise WorkerExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run())
