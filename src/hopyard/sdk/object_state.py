"""How the state of one bound object is taken and put back, whatever library it comes from.

Frameworks are looked up in `sys.modules`, never imported: an object of theirs can only exist where they were
imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from hopyard.errors import IntegrityError, SpecError
from hopyard.private_files import open_file
from hopyard.sdk import rng_state
from hopyard.sdk.restore_in_place import InPlaceRestorer
from hopyard.sdk.warn_once import warn_once


class StateKind(StrEnum):
    """What an object offers; the value is written into the checkpoint."""

    STATE_DICT = "state_dict"  # PyTorch modules, optimizers, schedulers, and all that copies their way
    WEIGHTS = "weights"  # Keras models: get_weights, set_weights
    STATE = "state"  # get_state, set_state: torch.Generator, numpy's RandomState
    PYTHON_STATE = "getstate"  # random.Random
    BIT_GENERATOR = "bit_generator"  # numpy.random.Generator
    VALUE = "value"  # anything that pickles
    UNSAVED = "aside"  # functions: kept for demos, not part of a checkpoint


# in what PyTorch says of a file that holds more than tensors
_BLOCKED_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_STATE_METHODS = {
    StateKind.STATE_DICT: ("state_dict", "load_state_dict"),
    StateKind.WEIGHTS: ("get_weights", "set_weights"),
    StateKind.STATE: ("get_state", "set_state"),
    StateKind.PYTHON_STATE: ("getstate", "setstate"),
}


def state_kind(value: object) -> StateKind:
    for kind, methods in _STATE_METHODS.items():
        if all(callable(getattr(value, method, None)) for method in methods):
            return kind
    if hasattr(getattr(value, "bit_generator", None), "state"):
        return StateKind.BIT_GENERATOR
    return StateKind.UNSAVED if callable(value) else StateKind.VALUE


def capture_state(value: Any) -> Any:
    """The state of `value`, as something that `write` can write."""
    kind = state_kind(value)
    if kind in _STATE_METHODS:
        return getattr(value, _STATE_METHODS[kind][0])()
    return value.bit_generator.state if kind is StateKind.BIT_GENERATOR else value


def restore_state(name: str, value: Any, state: Any) -> Any:
    """Give `value` the state that `take` took; returns the object that has it now (another one only where it
    cannot be filled: numbers, texts, arrays of another shape). Raises SpecError when the object refuses, as
    after a change of the model."""
    kind = state_kind(value)
    try:
        if kind in _STATE_METHODS or kind is StateKind.BIT_GENERATOR:
            _restore_own_state(value, state)
            return value
        return _restore_value(name, value, state)
    except Exception as refused:
        hint = (
            "the checkpoint was made by other code or other parameters; without it: `hop fork` with no "
            "checkpoint, or unset HOPYARD_RESTORE_DIR"
        )
        raise SpecError(f"the checkpoint does not fit `{name}`: {refused}", hints=(hint,)) from refused


def _restore_value(name: str, value: Any, state: Any) -> Any:
    """In place where that can be, so that names that the script already holds see it."""

    def changed(how: str) -> None:
        warn_once(
            f"`{name}` holds {how}: what was saved is on what hop.bind returns alone (`bound.{name}`)",
            kind=f"changed-{name}",
        )

    return InPlaceRestorer(_own_state, _restore_own_state, changed).restore(value, state)


def _own_state(value: Any) -> Any:
    """None for an object without methods for its state."""
    kind = state_kind(value)
    return capture_state(value) if kind in _STATE_METHODS or kind is StateKind.BIT_GENERATOR else None


def _restore_own_state(value: Any, state: Any) -> None:
    kind = state_kind(value)
    if kind is StateKind.BIT_GENERATOR:
        value.bit_generator.state = state
    else:
        getattr(value, _STATE_METHODS[kind][1])(state)


def write_state(path: str, value: Any, state: Any) -> str:
    """Write one object's state as `path` plus a suffix; returns the suffix: `.pt` (torch.save) or `.pkl`."""
    torch = sys.modules.get("torch")
    if torch is not None and state_kind(value) in (StateKind.STATE_DICT, StateKind.STATE):
        # by a path, it would be made as the umask says, and a full disk be a RuntimeError
        with open(path + ".pt", "wb", opener=open_file) as file:
            torch.save(state, file)
        return ".pt"
    import pickle

    try:
        pickle_to(path + ".pkl", state)
    except (pickle.PicklingError, TypeError, AttributeError) as bad:
        hint = (
            "bind objects with state_dict and load_state_dict, or with get_state and set_state, or "
            "plain values"
        )
        raise SpecError(f"`{path.rpartition('/')[2]}` cannot be saved: {bad}", hints=(hint,)) from bad
    return ".pkl"


def pickle_to(path: str, state: Any) -> None:
    import pickle

    with open(path, "wb", opener=open_file) as file:
        pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)


def read_state(path: str, *, is_untrusted: bool = False) -> Any:
    """Read what `write` wrote; tensors come to the CPU. Raises IntegrityError when the file is damaged.

    is_untrusted: another user's run wrote it. To unpickle it would run code that its author chose, so
    tensors, arrays and plain values are read alone. Raises SpecError for anything else.
    """
    import pickle

    from hopyard.sdk.safe_unpickler import load_safe
    from hopyard.sdk.safe_values import (
        unsafe_value_error,  # late: `import hopyard` and `hop.log` need no pickle
    )

    try:
        if not path.endswith(".pt"):
            with open(path, "rb") as file:
                return load_safe(file) if is_untrusted else pickle.load(file)
        import torch

        try:  # one's own may hold more than tensors, as a scheduler's state
            return torch.load(path, map_location="cpu", weights_only=is_untrusted)
        except pickle.UnpicklingError as refused:
            if is_untrusted and (named := _BLOCKED_GLOBAL.search(str(refused))) is not None:
                raise unsafe_value_error(named[1]) from None
            raise
    except (ImportError, SpecError):
        raise
    except Exception as bad:
        raise IntegrityError(f"{path} cannot be read: {bad}") from bad


# -- random numbers ------------------------------------------------------------------------------------------


def capture_rng() -> dict[str, Any]:
    """Returns the states of the generators as a checkpoint stores them: those of PyTorch as bytes."""
    states = rng_state.capture()
    if "torch" in states:
        states["torch"] = bytes(states["torch"].tolist())
    if "cuda" in states:
        states["cuda"] = [bytes(state.tolist()) for state in states["cuda"]]
    return states


def restore_rng(states: Mapping[str, Any]) -> None:
    """Set the generators to the states that `capture_rng` returned."""
    torch = sys.modules.get("torch")
    if torch is not None:
        states = dict(states)
        if "torch" in states:
            states["torch"] = _byte_tensor(torch, states["torch"])
        if "cuda" in states:
            states["cuda"] = [_byte_tensor(torch, state) for state in states["cuda"]]
    rng_state.restore(states)


def _byte_tensor(torch: Any, data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
