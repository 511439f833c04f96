"""Applies changed parameters to bound optimizers and schedulers of a running script.

A script may have several optimizers, each with a rate from another parameter. So a group of settings follows
a parameter only if it was built with the value of that parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hopyard.backports import zip
from hopyard.sdk.restored_hyperparameters import (
    CURRENT_RATES,
    Settings,
    is_number,
    plain_setting,
    set_setting,
    setting_groups,
)

# parameters with other names in the groups of an optimizer
_GROUP_KEYS = {"learning_rate": "lr", "wd": "weight_decay"}
# in names such as `lr_gamma`, which are no rates of an optimizer
_SCHEDULE_WORDS = frozenset(
    {
        "decay",
        "end",
        "factor",
        "final",
        "gamma",
        "min",
        "minimum",
        "mult",
        "patience",
        "power",
        "ratio",
        "scale",
        "schedule",
        "scheduler",
        "size",
        "step",
        "steps",
        "warmup",
    }
)
# of a group: the settings that hold the rate that the script gave, first as it was built
_BASES = ("initial_lr", "lr", "max_lr")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_RELATIVE_TOLERANCE = 1e-6  # a rate may be a tensor of 32 bits
Pair = tuple[Any, Any]  # before and after


def follow_in_optimizers(
    objects: Mapping[str, Any],
    built: Settings,
    changes: Mapping[str, Pair],
    scaled: Mapping[str, Pair],
    values: Mapping[str, Any],
) -> list[str]:
    """Applies changed parameters to the groups that were built with their values, and to their schedulers. A
    group with a decayed rate is scaled by the same factor, as are groups of the same optimizer with a
    multiple of the rate.

    built: the settings as the script built them, which a checkpoint records; they change as well, so that a
    resumed run does not apply the change twice. scaled: effective values of a batch-size rule, which the
    script may have used. values: all parameters before the change. Returns a text for each changed object,
    and for each with a setting of that name that stays.
    """
    texts = []
    found = list(setting_groups(objects))
    names = {id(groups): object_name for object_name, groups in found}
    for name in dict.fromkeys((*changes, *scaled)):
        pairs = [pair for pair in (scaled.get(name), changes.get(name)) if pair is not None]
        others = [value for other, value in values.items() if other != name and _words(other) & _words(name)]
        for object_name, groups in found:
            built_groups = built.get(object_name, [])
            rates = _scheduled_rates(groups)
            key = _setting_of(name, rates or groups)
            owner = names.get(id(groups[0]["optimizer"].param_groups), object_name) if rates else object_name
            stays = _belongs_to_other(owner, name, pairs, values) or not _can_follow(
                owner, name, key, pairs, values
            )
            if key == "lr" and rates:
                if not stays:
                    followed = _followed(rates, rates, key, pairs, others)
                    for settings in (*groups, *built_groups):
                        _scale_scheduler(settings, followed)
            elif groups and key in groups[0]:
                matching = _followed(groups, built_groups, key, pairs, others)
                if _is_named(name, key) or any(matching):
                    followed = [None] * len(groups) if stays else matching
                    texts += _scale_optimizer(object_name, groups, built_groups, key, followed)
    return texts


def _is_named(name: str, key: str) -> bool:
    """Returns whether a parameter has the name of a setting: `lr`, `wd`, unlike `lr_d`."""
    return key in (name, _GROUP_KEYS.get(name))


def _setting_of(name: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """Returns the setting of the groups that a parameter is for: `lr` for `lr`, `learning_rate` and `lr_d`;
    the name itself if there is none."""
    settings = groups[0] if groups else {}
    words = _words(name)
    for alias, key in (("lr", "lr"), ("weight_decay", "weight_decay"), *_GROUP_KEYS.items()):
        if name not in settings and key in settings and _words(alias) <= words:
            return name if (words - _words(alias)) & _SCHEDULE_WORDS else key
    return name


def _can_follow(owner: str, name: str, key: str, pairs: Sequence[Pair], values: Mapping[str, Any]) -> bool:
    """Returns whether an optimizer may have its setting from a parameter. One of another name, such as
    `lr_d`, must have a word of the optimizer (`optimizer_d`), or no other parameter for the setting has its
    value."""
    return (
        _is_named(name, key)
        or _names_object(name, key, owner)
        or not any(
            other != name
            and _setting_of(other, [{key: None}]) == key
            and any(_equals(value, before) for before, _ in pairs)
            for other, value in values.items()
        )
    )


def _names_object(name: str, key: str, object_name: str) -> bool:
    """Returns whether the words of a parameter, beside those of its setting, occur in the name of an
    object."""
    aliases = (key, *(alias for alias, setting in _GROUP_KEYS.items() if setting == key))
    own = _words(name).difference(*map(_words, aliases))
    return bool(own) and all(any(word.startswith(part) for word in _words(object_name)) for part in own)


def _scheduled_rates(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the base rates of a scheduler as groups; none for an optimizer."""
    rates = plain_setting(groups[0].get("base_lrs")) if groups and "lr" not in groups[0] else None
    return [{"lr": rate} for rate in rates] if isinstance(rates, list) else []


def _belongs_to_other(object_name: str, name: str, pairs: Sequence[Pair], values: Mapping[str, Any]) -> bool:
    """Returns whether another parameter with the same value has the name of this object: `lr_d` for
    `optimizer_d`."""
    return any(
        other != name
        and _words(name) < _words(other)
        and any(_equals(value, before) for before, _ in pairs)
        and _names_object(other, name, object_name)
        for other, value in values.items()
    )


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name))


def _followed(
    groups: Sequence[Mapping[str, Any]],
    built: Sequence[Mapping[str, Any]],
    key: str,
    pairs: Sequence[Pair],
    others: Sequence[Any],
) -> list[Pair | None]:
    """Returns for each group the change of the parameter that it follows; None for one that stays."""
    found = [
        next(
            (
                pair
                for pair in pairs
                if any(_equals(base, pair[0]) and _fits(base, pair[1]) for base in _bases(group, key))
            ),
            None,
        )
        for group in _with_built(groups, built)
    ]
    first = next((pair for pair in found if pair is not None), None)
    return [
        pair
        if pair is not None
        or first is None
        or any(_equals(base, other) for base in _bases(group, key) for other in others)
        else first
        for pair, group in zip(found, _with_built(groups, built), strict=True)
    ]


def _fits(setting: Any, new: Any) -> bool:
    """Returns whether a value can replace a setting: an optimizer with one beta instead of two would fail."""
    return not isinstance(setting, list) or (isinstance(new, (list, tuple)) and len(new) == len(setting))


def _with_built(
    groups: Sequence[Mapping[str, Any]], built: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yields each group with its settings as built; itself for a group that was added later."""
    for index, group in enumerate(groups):
        yield group, built[index] if index < len(built) else group


def _bases(group: tuple[Mapping[str, Any], Mapping[str, Any]], key: str) -> list[Any]:
    """Returns the values of a group that the script gave: as built, and as a scheduler recorded them."""
    current, built = group
    if key != "lr":
        return [plain_setting(built.get(key, current.get(key)))]
    rates = [plain_setting(built[name]) for name in _BASES if name in built]
    return rates + [plain_setting(current[name]) for name in _BASES[::2] if name in current]


def _scale_optimizer(
    object_name: str,
    groups: Sequence[dict[str, Any]],
    built: Sequence[dict[str, Any]],
    key: str,
    pairs: Sequence[Pair | None],
) -> list[str]:
    """Changes the settings. Returns a text for the first one that changes, or that stays."""
    before = [plain_setting(group.get(key)) for group in groups]
    for index, (group, pair) in enumerate(zip(groups, pairs, strict=True)):
        if pair is None:
            continue
        for settings in (group, *built[index : index + 1]):
            for name in _RATES if key == "lr" else (key,):
                if name in settings and (setting := plain_setting(settings[name])) is not ...:
                    set_setting(settings, name, _scaled(setting, pair))
    first = next((index for index, pair in enumerate(pairs) if pair is not None), None)
    if first is None:
        return [f"{key} of `{object_name}` stays {_text(before[0])}"]
    return [f"{key} of `{object_name}` {_text(before[first])} -> {_text(plain_setting(groups[first][key]))}"]


def _scale_scheduler(settings: dict[str, Any], pairs: Sequence[Pair | None]) -> None:
    for name in ("base_lrs", CURRENT_RATES):
        rates = plain_setting(settings.get(name))
        if isinstance(rates, list) and len(rates) == len(pairs):
            scaled = [
                rate if pair is None else _scaled(rate, pair) for rate, pair in zip(rates, pairs, strict=True)
            ]
            set_setting(settings, name, scaled)


def _scaled(setting: Any, pair: Pair) -> Any:
    """Returns a setting equal to the old value as the new one; another number scaled by the same factor."""
    old, new = pair
    if _equals(setting, old):
        return list(new) if isinstance(new, tuple) else new
    if not all(map(is_number, (setting, old, new))) or not old:
        return setting
    return setting * new / old


def _equals(setting: Any, value: Any) -> bool:
    if is_number(setting) and is_number(value):
        return math.isclose(setting, value, rel_tol=_RELATIVE_TOLERANCE)
    return bool(setting == (list(value) if isinstance(value, tuple) else value))


def _text(value: Any) -> str:
    return f"{value:.6g}" if is_number(value) else str(value)
