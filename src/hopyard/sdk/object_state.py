"""Captures and restores the state of one bound object of any library.

Frameworks are looked up in `sys.modules`, never imported: an object of a framework can only exist after its
import.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from hopyard.backports import StrEnum
from hopyard.errors import IntegrityError, SpecError
from hopyard.private_files import open_file
from hopyard.sdk import rng_state
from hopyard.sdk.restore_in_place import InPlaceRestorer
from hopyard.sdk.warn_once import warn_once


class StateKind(StrEnum):
    """How an object exposes its state; the value is written into the checkpoint."""

    STATE_DICT = "state_dict"  # PyTorch modules, optimizers, schedulers, and objects with the same interface
    WEIGHTS = "weights"  # Keras models: get_weights, set_weights
    STATE = "state"  # get_state, set_state: torch.Generator, numpy's RandomState
    PYTHON_STATE = "getstate"  # random.Random
    BIT_GENERATOR = "bit_generator"  # numpy.random.Generator
    VALUE = "value"  # anything that pickles
    UNSAVED = "aside"  # functions: available to demos, not part of a checkpoint


# in PyTorch's error for a file that holds more than tensors
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
    """Returns the state of `value` in a form that `write_state` can write."""
    kind = state_kind(value)
    if kind in _STATE_METHODS:
        return getattr(value, _STATE_METHODS[kind][0])()
    return value.bit_generator.state if kind is StateKind.BIT_GENERATOR else value


def restore_state(name: str, value: Any, state: Any) -> Any:
    """Restores a state that `capture_state` returned into `value`, and returns the restored object.

    That is another object only if `value` cannot be filled in place: numbers, text, arrays of another shape.
    Raises SpecError if the object rejects the state, as after a change of the model.
    """
    kind = state_kind(value)
    try:
        if kind in _STATE_METHODS or kind is StateKind.BIT_GENERATOR:
            _restore_own_state(value, state)
            return value
        return _restore_value(name, value, state)
    except Exception as error:
        hint = (
            "the checkpoint was made by other code or other parameters; to start without it, use `hop fork` "
            "without a checkpoint or unset HOPYARD_RESTORE_DIR"
        )
        raise SpecError(f"the checkpoint does not fit `{name}`: {error}", hints=(hint,)) from error


def _restore_value(name: str, value: Any, state: Any) -> Any:
    """Restores in place if possible, so that existing references in the script see the value."""

    def warn_changed(change: str) -> None:
        warn_once(
            f"`{name}` holds {change}: only `bound.{name}` has the saved value",
            kind=f"changed-{name}",
        )

    result = InPlaceRestorer(_own_state, _restore_own_state, warn_changed).restore(value, state)
    # such as numbers, text and tuples
    hash_function: object = type(value).__hash__
    is_constant = value is None or hash_function not in (None, object.__hash__)
    if result is not value and not is_constant:
        warn_changed(f"`{type(state).__name__}`, which cannot be restored in place")
    return result


def _own_state(value: Any) -> Any:
    """Returns None for an object without methods for its state."""
    kind = state_kind(value)
    return capture_state(value) if kind in _STATE_METHODS or kind is StateKind.BIT_GENERATOR else None


def _restore_own_state(value: Any, state: Any) -> None:
    kind = state_kind(value)
    if kind is StateKind.BIT_GENERATOR:
        value.bit_generator.state = state
    else:
        getattr(value, _STATE_METHODS[kind][1])(state)


def write_state(path: str, value: Any, state: Any) -> str:
    """Writes one object's state to `path` plus a suffix, and returns the suffix: `.pt` (torch.save) or
    `.pkl`.
    """
    torch = sys.modules.get("torch")
    if torch is not None and state_kind(value) in (StateKind.STATE_DICT, StateKind.STATE):
        # with a path, the umask would set its mode and a full disk would raise RuntimeError
        with open(path + ".pt", "wb", opener=open_file) as file:
            torch.save(state, file)
        return ".pt"
    import pickle

    try:
        pickle_to(path + ".pkl", state)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        hint = (
            "bind objects with state_dict and load_state_dict, objects with get_state and set_state, or "
            "plain values"
        )
        raise SpecError(f"`{path.rpartition('/')[2]}` cannot be saved: {error}", hints=(hint,)) from error
    return ".pkl"


def pickle_to(path: str, state: Any) -> None:
    import pickle

    with open(path, "wb", opener=open_file) as file:
        pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)


def read_state(path: str, *, is_untrusted: bool = False) -> Any:
    """Reads a file that `write_state` wrote; tensors are loaded to the CPU. Raises IntegrityError if the file
    is damaged.

    is_untrusted: another user's run wrote it. Unpickling would run code of its author's choice, so only
    tensors, arrays and plain values are read. Raises SpecError for all other contents.
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

        try:  # a trusted file may hold more than tensors, for example a scheduler's state
            return torch.load(path, map_location="cpu", weights_only=is_untrusted)
        except pickle.UnpicklingError as error:
            if is_untrusted and (blocked := _BLOCKED_GLOBAL.search(str(error))) is not None:
                raise unsafe_value_error(blocked[1]) from None
            raise
    except (ImportError, SpecError):
        raise
    except Exception as error:
        raise IntegrityError(f"{path} cannot be read: {error}") from error


# -- random numbers ------------------------------------------------------------------------------------------


def capture_rng() -> dict[str, Any]:
    """Returns the states of the generators as a checkpoint stores them: PyTorch states as bytes."""
    states = rng_state.capture()
    if "torch" in states:
        states["torch"] = bytes(states["torch"].tolist())
    if "cuda" in states:
        states["cuda"] = [bytes(state.tolist()) for state in states["cuda"]]
    return states


def restore_rng(states: Mapping[str, Any]) -> None:
    """Sets the generators to the states that `capture_rng` returned."""
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
