"""How the state of one bound object is taken and put back, whatever library it comes from.

Frameworks are looked up in `sys.modules`, never imported: an object of theirs can only exist where they were
imported.
"""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from typing import Any

from hopyard.errors import IntegrityError, SpecError
from hopyard.private_files import open_file
from hopyard.sdk.in_place import Filler
from hopyard.sdk.speak import say


class Kind(StrEnum):
    """What an object offers; the value is written into the checkpoint."""

    STATE_DICT = "state_dict"  # PyTorch modules, optimizers, schedulers, and all that copies their way
    WEIGHTS = "weights"  # Keras models: get_weights, set_weights
    STATE = "state"  # get_state, set_state: torch.Generator, numpy's RandomState
    PYTHON_STATE = "getstate"  # random.Random
    BIT_GENERATOR = "bit_generator"  # numpy.random.Generator
    VALUE = "value"  # anything that pickles
    ASIDE = "aside"  # functions: kept for demos, not part of a checkpoint


_REFUSED = re.compile(r"GLOBAL ([\w.]+)")  # in what PyTorch says of a file that holds more than tensors
_PAIRS = {
    Kind.STATE_DICT: ("state_dict", "load_state_dict"),
    Kind.WEIGHTS: ("get_weights", "set_weights"),
    Kind.STATE: ("get_state", "set_state"),
    Kind.PYTHON_STATE: ("getstate", "setstate"),
}


def kind_of(value: object) -> Kind:
    for kind, methods in _PAIRS.items():
        if all(callable(getattr(value, method, None)) for method in methods):
            return kind
    if hasattr(getattr(value, "bit_generator", None), "state"):
        return Kind.BIT_GENERATOR
    return Kind.ASIDE if callable(value) else Kind.VALUE


def take(value: Any) -> Any:
    """The state of `value`, as something that `write` can write."""
    kind = kind_of(value)
    if kind in _PAIRS:
        return getattr(value, _PAIRS[kind][0])()
    return value.bit_generator.state if kind is Kind.BIT_GENERATOR else value


def put_back(name: str, value: Any, state: Any) -> Any:
    """Give `value` the state that `take` took; returns the object that has it now (another one only where it
    cannot be filled: numbers, texts, arrays of another shape). Raises SpecError when the object refuses, as
    after a change of the model."""
    kind = kind_of(value)
    try:
        if kind in _PAIRS or kind is Kind.BIT_GENERATOR:
            _put_own(value, state)
            return value
        return _put_value(name, value, state)
    except Exception as refused:
        hint = (
            "the checkpoint was made by other code or other parameters; without it: `hop fork` with no "
            "checkpoint, or unset HOPYARD_RESTORE_DIR"
        )
        raise SpecError(f"the checkpoint does not fit `{name}`: {refused}", hints=(hint,)) from refused


def _put_value(name: str, value: Any, state: Any) -> Any:
    """In place where that can be, so that names that the script already holds see it."""

    def changed(how: str) -> None:
        say(
            f"`{name}` holds {how}: what was saved is on what hop.bind returns alone (`bound.{name}`)",
            once=f"changed-{name}",
        )

    return Filler(_own_state, _put_own, changed).fill(value, state)


def _own_state(value: Any) -> Any:
    """None for an object without methods for its state."""
    kind = kind_of(value)
    return take(value) if kind in _PAIRS or kind is Kind.BIT_GENERATOR else None


def _put_own(value: Any, state: Any) -> None:
    kind = kind_of(value)
    if kind is Kind.BIT_GENERATOR:
        value.bit_generator.state = state
    else:
        getattr(value, _PAIRS[kind][1])(state)


def write(path: str, value: Any, state: Any) -> str:
    """Write one object's state as `path` plus a suffix; returns the suffix: `.pt` (torch.save) or `.pkl`."""
    torch = sys.modules.get("torch")
    if torch is not None and kind_of(value) in (Kind.STATE_DICT, Kind.STATE):
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


def read(path: str, *, foreign: bool = False) -> Any:
    """Read what `write` wrote; tensors come to the CPU. Raises IntegrityError when the file is damaged.

    foreign: another user's run wrote it. To unpickle it would run code that its author chose, so tensors,
    arrays and plain values are read alone. Raises SpecError for anything else.
    """
    import pickle

    from hopyard.sdk.plain import not_plain  # late: `import hopyard` and `hop.log` need no pickle
    from hopyard.sdk.plain_pickle import load_plain

    try:
        if not path.endswith(".pt"):
            with open(path, "rb") as file:
                return load_plain(file) if foreign else pickle.load(file)
        import torch

        try:  # one's own may hold more than tensors, as a scheduler's state
            return torch.load(path, map_location="cpu", weights_only=foreign)
        except pickle.UnpicklingError as refused:
            if foreign and (named := _REFUSED.search(str(refused))) is not None:
                raise not_plain(named[1]) from None
            raise
    except (ImportError, SpecError):
        raise
    except Exception as bad:
        raise IntegrityError(f"{path} cannot be read: {bad}") from bad


# -- random numbers
# --------------------------------------------------------------------------------------------------


def take_chance() -> dict[str, Any]:
    """The state of the global random number generators of Python, NumPy and PyTorch, as far as they are in
    use."""
    import random

    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = bytes(torch.get_rng_state().tolist())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = [bytes(state.tolist()) for state in torch.cuda.get_rng_state_all()]
    return states


def put_chance(states: dict[str, Any]) -> None:
    """Let the generators go on from where `take_chance` saw them."""
    if "python" in states:
        import random

        random.setstate(states["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if torch is None:
        return
    if "torch" in states:
        torch.set_rng_state(_bytes_tensor(torch, states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(_bytes_tensor(torch, state), device)


def _bytes_tensor(torch: Any, data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
