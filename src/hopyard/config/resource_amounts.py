"""Amounts of several resources as people write them in a file: `{cpus: 64, memory: 512G, gpus: 16, gpus.A100:
4, extras.fpga: 2}`.

`gpus` counts GPUs of any model, `gpus.MODEL` those of one, in the numbers that `gpus` counts too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.config import units
from hopyard.config.limits import MAX_EXTRAS
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.ids import check_name
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts
from hopyard.domain.resources import WHOLE_GPU
from hopyard.errors import SpecError

AMOUNT_KEYS = ("cpus", "memory", "gpus", "gpus.MODEL", "extras.NAME")
_GPU_MODEL_PREFIX, _EXTRA_PREFIX = "gpus.", "extras."
_GPUS = re.compile(r"(\d{1,6})(?:\.(\d{1,3}))?", re.ASCII)
_GPUS_HINT = "GPUs are a number with at most three decimals: 8, 0.5"
_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9 ._-]{0,63}")


def read_amounts(section: YamlSection) -> Amounts:
    """Raises SpecError with the path of the invalid value."""
    amounts: dict[str, int] = {}
    for key in section.values:
        name, parse = _read_resource(section, key)
        if name in amounts:
            raise section.error(key, "the model is given twice", "use each model once: case does not matter")
        amount = section.amount(key, parse)
        if amount is None:
            raise section.error(key, "no amount is given", "leave the key out for no limit")
        amounts[name] = amount
    return amounts


def write_amounts(amounts: Amounts) -> dict[str, Any]:
    """Returns values that `read_amounts` reads back as the same amounts."""
    values: dict[str, Any] = {}
    for name in sorted(amounts, key=_sort_key):
        values[resource_key(name)] = amount_value(name, amounts[name])
    return values


def resource_key(name: str) -> str:
    """Returns the key of a resource in a file."""
    if name.startswith(GPU_OF):
        return _GPU_MODEL_PREFIX + name.removeprefix(GPU_OF)
    return {CPU: "cpus", MEMORY: "memory", GPU: "gpus"}.get(name, _EXTRA_PREFIX + name)


def amount_value(name: str, amount: int) -> int | float | str:
    """Returns an amount of a resource as in a file: `4`, `0.5`, `"512G"`."""
    if name == MEMORY:
        return units.format_memory(amount)
    if name in (CPU, GPU) or name.startswith(GPU_OF):
        return amount / WHOLE_GPU if amount % WHOLE_GPU else amount // WHOLE_GPU
    return amount


def _read_resource(section: YamlSection, key: str) -> tuple[str, Callable[[str], int]]:
    fixed: Mapping[str, tuple[str, Callable[[str], int]]] = {
        "cpus": (CPU, _parse_cpus),
        "memory": (MEMORY, units.parse_memory),
        "gpus": (GPU, _parse_gpus),
    }
    if key in fixed:
        return fixed[key]
    if key.startswith(_GPU_MODEL_PREFIX):
        model = key.removeprefix(_GPU_MODEL_PREFIX)
        if not _MODEL.fullmatch(model):
            raise section.error(
                key, f"`{model}` is not the name of a GPU model", "for example `gpus.A100: 8`"
            )
        return GPU_OF + model.lower(), _parse_gpus
    if key.startswith(_EXTRA_PREFIX):
        extra = section.parsed(key, lambda: check_name(key.removeprefix(_EXTRA_PREFIX), subject="extras"))
        if extra in (CPU, MEMORY, GPU):
            raise section.error(key, f"`{extra}` is not an extra resource", f"write `{resource_key(extra)}`")
        return extra, _parse_extras
    raise SpecError(
        f"{section.file}: {section.path}: there is no resource `{key}`",
        hints=unknown_name_hints(key, AMOUNT_KEYS, subject="resources"),
    )


def _parse_cpus(text: str) -> int:
    return 0 if text.strip() in ("0", "0.0") else units.parse_cpus(text)


def _parse_gpus(text: str) -> int:
    match = _GPUS.fullmatch(text.strip())
    if match is None:
        raise SpecError(f"gpus: `{text}` is not a number of GPUs", hints=(_GPUS_HINT,))
    return int(match[1]) * WHOLE_GPU + int((match[2] or "").ljust(3, "0"))


def _parse_extras(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text[:12]) > MAX_EXTRAS:
        raise SpecError(
            f"extras: `{text}` is not a whole number from 0 to {MAX_EXTRAS}",
            hints=("give a whole number: 1, 2",),
        )
    return int(text)


def _sort_key(name: str) -> tuple[int, str]:
    order = {CPU: 0, MEMORY: 1, GPU: 2}
    return order.get(name, 3 if name.startswith(GPU_OF) else 4), name
