"""States of the global random number generators of Python, NumPy and PyTorch (all devices).

They hop with the trial, so its random numbers do not depend on the worker. Frameworks are looked up in
`sys.modules`, never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hopyard.backports import zip


def capture() -> dict[str, Any]:
    """Returns the states of the generators that are in use; PyTorch states are tensors."""
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
    """Sets the generators to the states that `capture` returned."""
    if "python" in states:
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
