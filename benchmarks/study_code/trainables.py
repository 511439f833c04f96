"""The trainables of benchmarks.mop_study: the same networks as its peers, with memory of the process reported
as metrics."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import networks
import torch

import hopyard as hop


def anonymous_bytes() -> int:
    """Returns the anonymous memory of this process: arrays and program data.
    Returns the peak of all memory if the kernel does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Measured(hop.TorchTrainable):
    """data_bytes: of all partitions that this process has in memory.
    grown_bytes: its anonymous memory since all was imported."""

    def __init__(self, model: Any) -> None:
        # PyTorch imports many modules with its first optimiser
        networks.optimizer([torch.zeros(1, requires_grad=True)], {"lr": 0.1})
        super().__init__(
            model=model, optimizer=networks.optimizer, loss=networks.loss, metrics={"val_acc": "accuracy"}
        )
        self._partitions: dict[tuple[str, int], Any] = {}
        self._at_first = anonymous_bytes()

    def train(self, state: Any, partition: Any, config: Any) -> Any:
        self._partitions[partition.kind, partition.index] = partition
        return super().train(state, partition, config)

    def evaluate(self, state: Any, partition: Any, config: Any) -> dict[str, float]:
        self._partitions[partition.kind, partition.index] = partition
        held = {"data_bytes": sum(each.bytes_loaded for each in self._partitions.values())}
        return {
            **super().evaluate(state, partition, config),
            **held,
            "grown_bytes": anonymous_bytes() - self._at_first,
        }


digits = Measured(networks.digits_model)
table = Measured(networks.table_model)
