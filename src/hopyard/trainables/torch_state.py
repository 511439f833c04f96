"""The state of a trial of PyTorch, as plain values and back.

What a function of the user's makes anew from the config is not kept: modules, optimisers and schedules are
built, then filled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.errors import SpecError

_SMALL_STATE_BYTES = 256 * 1024  # of weights: their first values are made faster than they are left out
_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(slots=True)
class TorchState:
    """scheduler: made when the first unit begins, for only then it is known how many batches an epoch has:
    `steps`. initial_hyperparameters: the optimiser's hyperparameters as the config made them, of each group.
    epoch: the last that was trained."""

    model: Any
    optimizer: Any
    scheduler: Any = None
    steps: int = 0
    epoch: int = 0
    initial_hyperparameters: list[dict[str, Any]] = field(default_factory=list)


def capture(state: TorchState) -> dict[str, Any]:
    """Tensors are the state's own, on its device."""
    held = state.optimizer.state_dict()
    return {
        "model": dict(state.model.state_dict()),
        "optimizer": {
            "state": {str(at): _plain(own) for at, own in held["state"].items()},
            "groups": [_plain(group) for group in held["param_groups"]],
        },
        "scheduler": None if state.scheduler is None else _plain(state.scheduler.state_dict()),
        "steps": state.steps,
        "epoch": state.epoch,
        "begun": state.initial_hyperparameters,
    }


def fill_model(model: Any, captured: Mapping[str, Any]) -> None:
    """Its tensors are those of `captured` from now on.
    Raises SpecError where the weights are of another model."""
    tied: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(name)
    try:
        model.load_state_dict(captured["model"], assign=True)
    except RuntimeError as bad:
        hint = (
            "values that change while a model is trained (PBT, `hop fork STUDY --checkpoint best -p "
            "K=V`) must not change its shape"
        )
        raise SpecError(f"the state does not fit the model of this config: {bad}", hints=(hint,)) from bad
    for first, *others in tied.values():
        for name in others:
            inside, _, own = name.rpartition(".")
            setattr(model.get_submodule(inside), own, model.get_parameter(first))


def fill_optimizer(state: TorchState, captured: Mapping[str, Any]) -> None:
    """After the scheduler was made. Hyperparameters that the config has changed since hold from now on; of
    the learning rate, what the schedule had made of it is kept as a ratio."""
    fresh = state.optimizer.state_dict()["param_groups"]
    groups = [
        _merge_captured(new, old) for new, old in zip(fresh, captured["optimizer"]["groups"], strict=True)
    ]
    for at, (group, before, now) in enumerate(
        zip(groups, captured["begun"], state.initial_hyperparameters, strict=True)
    ):
        for name, value in now.items():
            if before.get(name) == value:
                continue
            if name == "lr" and before["lr"]:
                group["lr"] = value * (group["lr"] / before["lr"])
                group.update({"initial_lr": value} if "initial_lr" in group else {})
                if state.scheduler is not None and hasattr(state.scheduler, "base_lrs"):
                    state.scheduler.base_lrs[at] = value
            else:
                group[name] = type(fresh[at][name])(value) if isinstance(fresh[at][name], tuple) else value
    own = {int(at): dict(kept) for at, kept in captured["optimizer"]["state"].items()}
    state.optimizer.load_state_dict({"state": own, "param_groups": groups})


def fill_scheduler(scheduler: Any, captured: Mapping[str, Any]) -> None:
    scheduler.load_state_dict(_merge_captured(scheduler.state_dict(), captured["scheduler"]))
    scheduler.optimizer._opt_called = True  # it has made steps, though not this object: PyTorch would warn


def hyperparameters(optimizer: Any) -> list[dict[str, Any]]:
    """Of each group, all but the parameters themselves."""
    return [
        _plain({name: value for name, value in group.items() if name != "params"})
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    """What is plain of it, tuples as lists; of a dictionary, only entries that are: the rest comes from the
    config again."""
    if isinstance(value, Mapping):
        return {
            str(name): _plain(own) for name, own in value.items() if type(value) is dict and _is_plain(own)
        }
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    import torch

    if isinstance(value, list | tuple):
        return all(_is_plain(own) for own in value)
    return type(value) in (*_PLAIN, dict) or torch.is_tensor(value)


def _merge_captured(fresh: Any, captured: Any) -> Any:
    """What was kept, over what was made anew; tuples are tuples again."""
    if isinstance(fresh, dict) and isinstance(captured, Mapping):
        return {**fresh, **{name: _merge_captured(fresh.get(name), own) for name, own in captured.items()}}
    if isinstance(fresh, tuple) and isinstance(captured, list):
        return tuple(captured)
    if isinstance(fresh, list) and isinstance(captured, list) and len(fresh) == len(captured):
        return [_merge_captured(one, other) for one, other in zip(fresh, captured, strict=True)]
    return captured


# -- building without filling --------------------------------------------------------------------------------


def build_empty(build: Callable[[], Any], captured: Mapping[str, Any]) -> Any:
    """What `build` makes, to be filled from a state: where that can be, its tensors without memory and first
    values, which take longer than all else where they are not few. A module that keeps tensors beside its
    state dict, or that looks at values, is built in full."""
    import torch

    if sum(getattr(tensor, "nbytes", 0) for tensor in captured["model"].values()) < _SMALL_STATE_BYTES:
        return build()
    try:
        with torch.device("meta"):
            model = build()
    except Exception:  # what it looks at has no values; if anything else is wrong, it is wrong again
        return build()
    return build() if not isinstance(model, torch.nn.Module) or _has_hidden_tensors(model) else model


def _has_hidden_tensors(model: Any) -> bool:
    import torch

    for module in model.modules():
        if module._non_persistent_buffers_set:
            return True
        for value in vars(module).values():
            inner = value if isinstance(value, list | tuple) else (value,)
            if any(torch.is_tensor(one) for one in inner):
                return True
    return False
