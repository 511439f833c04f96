"""Seeds the random number generators that a trial's code uses: Python's, NumPy's, PyTorch's, Keras's."""

from __future__ import annotations

import hashlib
import sys
from typing import Any


def seed_all(seed: int, trial: str) -> None:
    """Seeds all generators for a new trial. Each trial of each study has its own random numbers."""
    import random

    entropy = hashlib.blake2b(f"{seed}:{trial}".encode(), digest_size=32).digest()
    numpy, torch, keras = sys.modules.get("numpy"), sys.modules.get("torch"), sys.modules.get("keras")
    # first: it seeds the others too, and their seeds must not depend on whether Keras is imported
    if keras is not None:
        keras.utils.set_random_seed(int.from_bytes(entropy[:4], "little"))
    random.seed(int.from_bytes(entropy, "little"))
    if numpy is not None:
        numpy.random.seed(list(memoryview(entropy).cast("I")))
    if torch is not None:
        seed_torch(torch, int.from_bytes(entropy[:8], "little") >> 1)


def seed_torch(torch: Any, seed: int) -> None:
    """Seeds as `torch.manual_seed` does. Without an accelerator, that function still records the call stack
    for every kind of device, which takes a hundred times as long as the seeding."""
    devices = getattr(torch, "accelerator", torch.cuda)
    if devices.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
