"""Generated YAML and TOML texts: parse(edit(text)) equals edit(parse(text))."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.nested_settings import set_nested
from hopyard.config.toml_settings import change_toml
from hopyard.config.yaml_settings import change_yaml

NAMES = st.sampled_from(["a", "b", "lr", "deep key", "no", "1", "0", "#x"])
VALUES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=6),
    st.sampled_from(["# x", "]", '"', "'''", "a: b", "*a", "&a", "true", "1e5"]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
TREES = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SETTINGS = st.dictionaries(NAMES, TREES, max_size=4)
PATHS = st.lists(NAMES, min_size=1, max_size=3)


def edited(settings: Any, path: list[str], value: Any) -> Any:
    """Returns a copy with the value at a path of keys and indexes. Raises ValueError for an absent entry."""
    settings = copy.deepcopy(settings)
    node = settings
    for part, following in zip(path, [*path[1:], None], strict=True):
        key = key_of(node, part)
        if following is None:
            node[key] = value
        elif isinstance(node, dict) and not isinstance(node.get(key), (dict, list)):
            node[key] = {}
        elif not isinstance(node[key], (dict, list)):
            raise ValueError  # one entry of a list
        node = node[key]
    return settings


def key_of(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        return name
    if name.isdecimal() and int(name) < len(node):
        return int(name)
    raise ValueError


def toml_text(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Writes plain values first, and each table below its header."""
    tables = {key: value for key, value in settings.items() if isinstance(value, dict) and value}
    lines = [f"[{'.'.join(map(json.dumps, path))}] # table\n"] if path else []
    lines += [
        f"{json.dumps(key, ensure_ascii=False)} = {inline(value)} # old\n"
        for key, value in settings.items()
        if key not in tables
    ]
    return "".join(lines) + "".join(toml_text(value, (*path, key)) for key, value in tables.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {inline(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return "[\n" + "".join(f"  {inline(each)}, # ] entry\n" for each in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


@given(SETTINGS, PATHS, VALUES, st.booleans())
def test_yaml(settings: dict[str, Any], path: list[str], value: Any, flow: bool) -> None:
    text = yaml.safe_dump(settings, default_flow_style=flow, allow_unicode=True)
    settings = yaml.safe_load(text)  # PyYAML writes some characters as others
    try:
        expected = edited(settings, path, value)
    except ValueError:
        with pytest.raises(ValueError):
            change_yaml(text, {".".join(path): value})
        return
    assert yaml.safe_load(change_yaml(text, {".".join(path): value})) == expected


@given(
    st.lists(st.booleans(), min_size=1, max_size=5), st.integers(0, 4), st.booleans(), st.sampled_from("sl")
)
def test_yaml_aliases(shared: list[bool], index: int, flow: bool, kind: str) -> None:
    """An alias is replaced at its own place; the aliases of an anchor follow it."""
    index %= len(shared)
    anchor = {"s": "1", "l": "[1]"}[kind]
    first = shared.index(True) if True in shared else -1
    entries = [
        ("*x" if number > first else f"&x {anchor}") if is_shared else "0"
        for number, is_shared in enumerate(shared)
    ]
    text = f"x: [{', '.join(entries)}]\n" if flow else "x:\n" + "".join(f"- {each}\n" for each in entries)
    expected = yaml.safe_load(text)["x"]
    for number, is_shared in enumerate(shared):
        if number == index or (index == first and is_shared):
            expected[number] = "new"
    assert yaml.safe_load(change_yaml(text, {f"x.{index}": "new"})) == {"x": expected}


@given(SETTINGS, PATHS, VALUES)
def test_json(settings: dict[str, Any], path: list[str], value: Any) -> None:
    changed = copy.deepcopy(settings)
    try:
        expected = edited(settings, path, value)
    except ValueError:
        with pytest.raises(ValueError):
            set_nested(changed, path, value)
        return
    set_nested(changed, path, value)
    assert changed == expected


@given(SETTINGS, PATHS, VALUES)
def test_toml(settings: dict[str, Any], path: list[str], value: Any) -> None:
    text = toml_text(settings)
    assert tomllib.loads(text) == settings
    try:
        changed = change_toml(text, {".".join(path): value})
    except ValueError:  # also a table that a value would replace
        return
    assert tomllib.loads(changed) == edited(settings, path, value)


@given(st.dictionaries(NAMES, VALUES, min_size=1), st.data(), VALUES)
def test_each_setting_of_a_toml_table_can_be_changed(
    table: dict[str, Any], data: st.DataObject, value: Any
) -> None:
    settings = {"t": table, "last": {"a": 1}}
    name = data.draw(st.sampled_from(sorted(table)))
    changed = tomllib.loads(change_toml(toml_text(settings), {f"t.{name}": value}))
    assert changed == edited(settings, ["t", name], value)
