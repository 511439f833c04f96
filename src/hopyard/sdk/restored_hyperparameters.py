"""Applies hyperparameters that the script has changed since the checkpoint to its restored optimizers.

A state dict of an optimizer holds its learning rate and other settings, and so does that of a scheduler.
After `hop fork -p lr=0.001`, or when PBT changes a parameter, the script builds the optimizer with the new
value, and the restored state would replace it. A checkpoint records the settings as the script built them, so
that a change is known. Settings that only the training changed, such as a decayed rate, stay as restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hopyard.backports import zip
from hopyard.sdk.warn_once import warn_once

Settings = dict[str, list[dict[str, Any]]]  # by name: of each group of an optimizer, or of a scheduler
_MAX_DEPTH = 3  # of containers in which optimizers are found
CURRENT_RATES = "_last_lr"  # of a scheduler: the rates of all groups now


def capture_settings(objects: Mapping[str, Any]) -> Settings:
    """Returns the settings of all optimizers and schedulers among the objects and in their containers."""
    return {
        name: [
            {
                key: plain
                for key in group
                if key != "params" and (plain := plain_setting(group[key])) is not ...
            }
            for group in _groups(value)
        ]
        for name, value in _tuned_objects(objects)
    }


def apply_changes(objects: Mapping[str, Any], built: Settings, built_before: Mapping[str, Any]) -> None:
    """Applies the settings that differ between the objects as built now and as built by the run of the
    checkpoint. Prints a line for each changed setting, with the restored and the new value."""
    for name, value in _tuned_objects(objects):
        groups, now, before = _groups(value), built.get(name, []), built_before.get(name)
        if before is None:
            _report_contradiction(name, groups, now)
        elif isinstance(before, list) and len(groups) == len(now) == len(before):
            for group, group_now, group_before in zip(groups, now, before, strict=True):
                if isinstance(group_before, dict):
                    _apply_to_group(name, group, group_now, group_before)


def setting_groups(objects: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the name of each optimizer and scheduler with its groups of settings, which may be changed."""
    for name, value in _tuned_objects(objects):
        yield name, _groups(value)


def _apply_to_group(
    name: str, group: dict[str, Any], now: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    base = "initial_lr" if "initial_lr" in now and "initial_lr" in before else "lr"
    ratio = _ratio(now.get(base), before.get(base))
    for key, setting in now.items():
        if key not in before or key not in group:
            continue
        restored, value = plain_setting(group[key]), setting
        if key == "lr" and restored != before[key] and ratio is not None and is_number(restored):
            value = restored * ratio  # a schedule continues from its position, at the new rate
            if ratio == 1:
                continue
        elif setting == before[key]:
            continue
        elif key == CURRENT_RATES:
            value = _scaled(restored, now.get("base_lrs"), before.get("base_lrs"))
        if value != restored:
            set_setting(group, key, value)
            if key != CURRENT_RATES:
                _report_change(name, key, restored, value)


def _report_change(name: str, key: str, restored: Any, value: Any) -> None:
    warn_once(
        f"`{name}`: the script has changed {key}: {_text(value)} replaces {_text(restored)} of the "
        "checkpoint",
        kind=f"setting-{name}-{key}-{restored}",
    )


def _report_contradiction(name: str, groups: list[dict[str, Any]], now: list[dict[str, Any]]) -> None:
    """Warns about a rate of a checkpoint without recorded settings: it may have been changed by the script or
    by the training."""
    for group, built in zip(groups, now, strict=False):
        restored, rate = plain_setting(group.get("lr")), built.get("lr")
        if is_number(restored) and is_number(rate) and restored != rate:
            warn_once(
                f"`{name}` trains with lr {_text(restored)} of the checkpoint; the script has built it with "
                f"{_text(rate)}",
                kind=f"contradiction-{name}",
            )


def _ratio(now: Any, before: Any) -> float | None:
    return float(now) / float(before) if is_number(now) and is_number(before) and before else None


def _scaled(rates: Any, now: Any, before: Any) -> Any:
    if not (isinstance(rates, list) and isinstance(now, list) and isinstance(before, list)):
        return rates
    if not len(rates) == len(now) == len(before):
        return rates
    ratios = [_ratio(new, old) for new, old in zip(now, before, strict=True)]
    return [rate * (1.0 if ratio is None else ratio) for rate, ratio in zip(rates, ratios, strict=True)]


def set_setting(group: dict[str, Any], key: str, value: Any) -> None:
    """Sets a setting of a group; a rate that is a tensor in place."""
    current = group[key]
    if callable(getattr(current, "fill_", None)):
        current.fill_(value)
    else:
        group[key] = tuple(value) if isinstance(current, tuple) else value


def _tuned_objects(objects: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in objects.items():
        parts = value
        if _is_optimizer(value) or _is_scheduler(value):
            yield f"{prefix}{name}", value
            parts = getattr(value, "_schedulers", None)  # of a sequence of schedulers
        if isinstance(parts, (dict, list, tuple)) and depth < _MAX_DEPTH:
            by_name = parts if isinstance(parts, dict) else dict(enumerate(parts))
            yield from _tuned_objects(by_name, f"{prefix}{name}.", depth + 1)


def _groups(value: Any) -> list[dict[str, Any]]:
    return value.param_groups if _is_optimizer(value) else [vars(value)]


def _is_optimizer(value: Any) -> bool:
    groups = getattr(value, "param_groups", None)
    return isinstance(groups, list) and all(isinstance(group, dict) for group in groups)


def _is_scheduler(value: Any) -> bool:
    return hasattr(value, "last_epoch") and _is_optimizer(getattr(value, "optimizer", None))


def is_number(value: Any) -> bool:
    """Returns whether a setting is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain_setting(value: Any) -> Any:
    """Returns the setting in the form of JSON; `...` for anything else, such as tensors of state."""
    if value is None or isinstance(value, (bool, str)) or is_number(value):
        return value
    if isinstance(value, (tuple, list)):
        return list(value) if len(value) <= 64 and all(is_number(part) for part in value) else ...
    if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return value.item()
    return ...


def _text(value: Any) -> str:
    return f"{value:.6g}" if is_number(value) else str(value)
