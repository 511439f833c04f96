"""Single values of files that describe runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from hopyard.config.key_values import Value
from hopyard.config.schemas.validation_errors import find_problem
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.ids import check_name


def read_name(section: YamlSection, key: str) -> str:
    """Returns a name, "" where there is none. Raises SpecError."""
    text = section.text(key)
    return section.parsed(key, lambda: check_name(text, subject=key)) if text else ""


def read_flag(section: YamlSection, key: str, *, default: bool) -> bool:
    """Raises SpecError."""
    value = section.flag(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise section.error(
            key, f"{section.given(key)} is neither true nor false", "write true or false, without quotes"
        )
    return value


def read_field(section: YamlSection, key: str, shape: type[msgspec.Struct], name: str = "") -> Any:
    """Returns the value of `key` as the field `name` of `shape` takes it, by default the field of that name.
    Returns the field's default where there is no value. Raises SpecError for a value that is not allowed."""
    field = _fields(shape)[name or key]
    value = section.flag(key) if field.type is bool else section.values.get(key)
    if value is None:
        return field.default
    problem = find_problem(value, field.type)
    if problem is not None:
        raise section.error(".".join((key, *problem.path)), problem.problem, *problem.hints)
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:  # `10.0` is a whole number in JSON only
        raise section.error(
            key, f"{section.given(key)} is not a whole number", "write it without a point or an exponent"
        ) from error


def read_positive_field(section: YamlSection, key: str, shape: type[msgspec.Struct]) -> int:
    """As `read_field`, but refuses 0, which means the default in a request: a file leaves the key out."""
    value: int = read_field(section, key, shape)
    if not value and section.values.get(key) is not None:
        raise section.error(
            key, f"{format_given(0)} is not a whole number from 1", "leave it out for the default"
        )
    return value


@cache
def _fields(shape: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(shape)}


def read_param(section: YamlSection, key: str) -> Value:
    """Returns the value of a parameter. Raises SpecError."""
    value: Any = section.values[key]
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise section.error(
            key,
            f"{section.given(key)} is not a single value",
            "a parameter is a text, a number, true, false or null",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise section.error(
            key,
            f"{section.given(key)} is not a finite number",
            f'write it in quotes to pass it as a text: "{value}"',
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise section.error(
            key, f"{section.given(key)} is larger than 64 bits", "write it in quotes to pass it as a text"
        )
    return value
