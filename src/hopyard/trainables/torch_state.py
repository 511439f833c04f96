"""Converts the state of a PyTorch trial to plain values and back.

Objects that the user's functions create from the config are not stored: modules, optimizers and schedulers
are built again, then filled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.errors import SpecError

_SMALL_STATE_BYTES = 256 * 1024  # below this, initial weights are computed faster than they are skipped
_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(slots=True)
class TorchState:
    """The state of a trial.

    scheduler: created when the first unit begins, because only then `steps`, the number of batches per epoch,
    is known. initial_hyperparameters: the optimizer's hyperparameters from the config, by group. epoch: the
    last trained epoch.
    """

    model: Any
    optimizer: Any
    scheduler: Any = None
    steps: int = 0
    epoch: int = 0
    initial_hyperparameters: list[dict[str, Any]] = field(default_factory=list)


def capture(state: TorchState) -> dict[str, Any]:
    """Returns plain values; tensors are those of the state, on its device."""
    optimizer_state = state.optimizer.state_dict()
    return {
        "model": dict(state.model.state_dict()),
        "optimizer": {
            "state": {str(index): _plain(values) for index, values in optimizer_state["state"].items()},
            "groups": [_plain(group) for group in optimizer_state["param_groups"]],
        },
        "scheduler": None if state.scheduler is None else _plain(state.scheduler.state_dict()),
        "steps": state.steps,
        "epoch": state.epoch,
        "begun": state.initial_hyperparameters,
    }


def fill_model(model: Any, captured: Mapping[str, Any]) -> None:
    """Loads the weights into the model, which uses the tensors of `captured` from now on. Raises SpecError if
    the weights are of another model."""
    tied: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(name)
    try:
        model.load_state_dict(captured["model"], assign=True)
    except RuntimeError as error:
        hint = (
            "values that change while a model is trained (PBT, `hop fork STUDY --checkpoint best -p "
            "K=V`) must not change its shape"
        )
        raise SpecError(f"the state does not fit the model of this config: {error}", hints=(hint,)) from error
    for first, *duplicates in tied.values():
        for name in duplicates:
            module_path, _, parameter_name = name.rpartition(".")
            setattr(model.get_submodule(module_path), parameter_name, model.get_parameter(first))


def fill_optimizer(state: TorchState, captured: Mapping[str, Any]) -> None:
    """Restores the optimizer after the scheduler was created.

    Hyperparameters that the config has changed since then apply from now on. For the learning rate, the
    schedule's ratio to the initial rate is kept.
    """
    new_groups = state.optimizer.state_dict()["param_groups"]
    groups = [
        _merge_captured(new, old)
        for new, old in zip(new_groups, captured["optimizer"]["groups"], strict=True)
    ]
    for index, (group, initial, current) in enumerate(
        zip(groups, captured["begun"], state.initial_hyperparameters, strict=True)
    ):
        for name, value in current.items():
            if initial.get(name) == value:
                continue
            if name == "lr" and initial["lr"]:
                group["lr"] = value * (group["lr"] / initial["lr"])
                group.update({"initial_lr": value} if "initial_lr" in group else {})
                if state.scheduler is not None and hasattr(state.scheduler, "base_lrs"):
                    state.scheduler.base_lrs[index] = value
            else:
                group[name] = (
                    type(new_groups[index][name])(value)
                    if isinstance(new_groups[index][name], tuple)
                    else value
                )
    state_by_index = {int(index): dict(values) for index, values in captured["optimizer"]["state"].items()}
    state.optimizer.load_state_dict({"state": state_by_index, "param_groups": groups})


def fill_scheduler(scheduler: Any, captured: Mapping[str, Any]) -> None:
    scheduler.load_state_dict(_merge_captured(scheduler.state_dict(), captured["scheduler"]))
    scheduler.optimizer._opt_called = True  # steps were made before this object existed: PyTorch would warn


def hyperparameters(optimizer: Any) -> list[dict[str, Any]]:
    """Returns the hyperparameters of each group, without its parameters."""
    return [
        _plain({name: value for name, value in group.items() if name != "params"})
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    """Returns the plain parts of a value, tuples as lists. Other entries of a dictionary are dropped: they
    are created again from the config."""
    if isinstance(value, Mapping):
        return {
            str(name): _plain(entry)
            for name, entry in value.items()
            if type(value) is dict and _is_plain(entry)
        }
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    import torch

    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    return type(value) in (*_PLAIN, dict) or torch.is_tensor(value)


def _merge_captured(created: Any, captured: Any) -> Any:
    """Merges captured values over newly created ones; restores tuples."""
    if isinstance(created, dict) and isinstance(captured, Mapping):
        return {
            **created,
            **{name: _merge_captured(created.get(name), entry) for name, entry in captured.items()},
        }
    if isinstance(created, tuple) and isinstance(captured, list):
        return tuple(captured)
    if isinstance(created, list) and isinstance(captured, list) and len(created) == len(captured):
        return [_merge_captured(new, old) for new, old in zip(created, captured, strict=True)]
    return captured


# -- building without filling --------------------------------------------------------------------------------


def build_empty(build: Callable[[], Any], captured: Mapping[str, Any]) -> Any:
    """Calls `build` to get a module that is filled from a state.

    Large tensors are created without memory and initial values if possible, since that takes most of the
    time. A module with tensors outside its state dict, or one that reads values, is built in full.
    """
    import torch

    if sum(getattr(tensor, "nbytes", 0) for tensor in captured["model"].values()) < _SMALL_STATE_BYTES:
        return build()
    try:
        with torch.device("meta"):
            model = build()
    except Exception:  # it reads values that do not exist; any other error is raised again below
        return build()
    return build() if not isinstance(model, torch.nn.Module) or _has_hidden_tensors(model) else model


def _has_hidden_tensors(model: Any) -> bool:
    import torch

    for module in model.modules():
        if module._non_persistent_buffers_set:
            return True
        for value in vars(module).values():
            inner = value if isinstance(value, list | tuple) else (value,)
            if any(torch.is_tensor(element) for element in inner):
                return True
    return False
