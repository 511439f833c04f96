"""Seeds of the random number generators that a trial's code uses: Python's, NumPy's, PyTorch's, Keras's."""

from __future__ import annotations

import hashlib
import sys
from typing import Any


def seed_all(seed: int, trial: str) -> None:
    """As a trial that has not begun finds them: each trial of each study has numbers of its own."""
    import random

    made = hashlib.blake2b(f"{seed}:{trial}".encode(), digest_size=32).digest()
    numpy, torch, keras = sys.modules.get("numpy"), sys.modules.get("torch"), sys.modules.get("keras")
    # first: it seeds the others too, and theirs are not to hang on whether somebody imported it
    if keras is not None:
        keras.utils.set_random_seed(int.from_bytes(made[:4], "little"))
    random.seed(int.from_bytes(made, "little"))
    if numpy is not None:
        numpy.random.seed(list(memoryview(made).cast("I")))
    if torch is not None:
        seed_torch(torch, int.from_bytes(made[:8], "little") >> 1)


def seed_torch(torch: Any, seed: int) -> None:
    """As `torch.manual_seed`. Where there is no device but the CPU, that one still writes down the stack of
    calls for each kind of device that there could be, which takes a hundred times as long as seeding."""
    devices = getattr(torch, "accelerator", torch.cuda)
    if devices.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
