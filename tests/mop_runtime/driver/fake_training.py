"""The computation of fake workers. A state is the history of its training, so that a repeated or omitted step
is visible."""

from __future__ import annotations

import hashlib
from typing import Any

from hopyard.trial_state.digest import digest
from hopyard.trial_state.encode import encode


def initial_state(trial: str, params: dict[str, Any], seed: int) -> list[str]:
    return [f"{trial} {sorted(params.items())} {seed}"]


def train(state: list[str], trial: str, epoch: int, partitions: list[int]) -> list[str]:
    return [*state, f"{trial} {epoch} {partitions}"]


def rows(partition: int) -> int:
    return 10 + partition


def evaluate(state: list[str], partition: int) -> float:
    """Returns a value between 0 and 1 that differs for each state and partition."""
    digest_bytes = hashlib.blake2b(f"{state} {partition}".encode(), digest_size=4).digest()
    return int.from_bytes(digest_bytes, "big") / 2**32


def measure(values: list[float]) -> float:
    """Returns a value that differs for each order of the partitions' values."""
    return sum(value / (number + 1) for number, value in enumerate(values))


def digest_of(state: list[str], size: int) -> str:
    return digest(encode({"history": state, "padding": bytes(size)}).to_bytes())
