"""The process of a replica of role `worker`."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from hopyard.errors import HopyardError, SpecError
from hopyard.studies.link.wire import join_address
from hopyard.studies.place import find_place
from hopyard.studies.worker import process
from hopyard.studies.worker.failure import Leaving
from hopyard.studies.worker.run import run_worker


def main() -> int:
    """Returns the exit code. Raises SpecError where this process is no worker of a study, ServerUnavailable
    without a driver."""
    place = find_place()
    mop = place.spec.mop
    if mop is None or place.dataset is None:
        raise SpecError(f"the study `{place.spec.name}` has no dataset for workers to keep partitions of")
    process.begin_again_with(process.environment(mop.deterministic, mop.threads))
    signal.signal(signal.SIGTERM, leave)
    run_worker(
        join_address(*place.meet),
        place.secret,
        place.spec,
        place.dataset,
        f"worker-{place.role_rank}",
        place.gang / "states",
        foreign=place.foreign,
    )
    return 0


def run() -> int:
    """`main`, with what is wrong said as people read it."""
    try:
        return main()
    except HopyardError as error:
        for hint in error.hints:
            print(f"hint: {hint}", file=sys.stderr)
        # last: it becomes the replica's exit reason
        print(f"error: {error.message}", file=sys.stderr, flush=True)
        return 1


def leave(_signal: int, _frame: FrameType | None) -> None:
    """As the replica asks for: what lies in shared memory is given back on the way out."""
    raise Leaving(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run())
