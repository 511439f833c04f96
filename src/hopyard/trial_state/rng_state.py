"""The random number generators that user's code draws from: Python's, NumPy's, PyTorch's (every device's),
Keras's.

A trial takes theirs along as it hops: what it draws does not depend on where it is, or who was there before.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
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


def capture() -> dict[str, Any]:
    """The states of those that are in use."""
    import random

    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore(states: Mapping[str, Any]) -> None:
    """Let the generators go on from where `take` saw them."""
    import random

    random.setstate(states["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if torch is None:
        return
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state, device)
