"""Trains one state with several workers in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hopyard.trainables.protocol import Reduce, average


def train_in_group(count: int, train: Callable[[int, Reduce], bytes]) -> set[bytes]:
    """Returns the resulting states, with a reduce that waits for all workers.
    Workers are processes; here they are threads that alternate, since threads of a process share its random
    generators."""
    gate, turn = threading.Barrier(count), threading.Lock()
    offered: dict[int, Any] = {}

    def worker(at: int) -> bytes:
        def reduce(arrays: Any) -> Any:
            offered[at] = arrays
            turn.release()
            gate.wait()
            means = average([offered[n] for n in range(count)])
            gate.wait()
            turn.acquire()
            return means

        with turn:
            return train(at, reduce)

    with ThreadPoolExecutor(count) as pool:
        return set(pool.map(worker, range(count)))
