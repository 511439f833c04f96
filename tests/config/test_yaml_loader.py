"""YAML 1.2: types of scalars, texts as typed, encodings, and refusals with their line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hopyard.config.run_file import read_run_file
from hopyard.config.yaml_loader import dump_yaml, load_yaml
from hopyard.errors import SpecError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, word) for word in ("no", "yes", "on", "Off", "y", "12:30", "2026-11-25", "1_000", "0755")],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, None) for word in ("null", "~", "Null", "")],
        ("0", 0),
        ("-12", -12),
        ("+3", 3),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e-3", 0.001),
        ("1e5", 100000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1.5E+2", -150.0),
        ("-.inf", -math.inf),
        ("1.2.3", "1.2.3"),
        ("0.1.", "0.1."),
        ("1e", "1e"),
    ],
)
def test_scalars_have_types_of_core_schema(text: str, value: Any) -> None:
    loaded = load_yaml(f"key: {text}\n".encode(), "f")
    assert (loaded["key"], type(loaded["key"])) == (value, type(value))
    assert loaded.sources == {"key": text}


def test_nan_is_float() -> None:
    assert math.isnan(load_yaml(b"key: .NaN", "f")["key"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_name_the_encoding(encoding: str) -> None:
    assert load_yaml("größe: Zürich\n".encode(encoding), "f") == {"größe": "Zürich"}


def test_other_encoding_is_refused_with_its_line() -> None:
    with pytest.raises(SpecError, match=r"hop\.yaml: line 2: not UTF-8: byte 0xfc") as caught:
        load_yaml("a: 1\nb: Zürich\n".encode("latin-1"), "hop.yaml")
    assert "UTF-8" in caught.value.hints[0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key `a` is given twice"),
        ("a:\n\t- 1", "line 2: not YAML"),
        ("a: \x07", "line 1: not YAML: special characters"),
        ("? [a]\n: 1", "line 1: not YAML: a list or a mapping cannot be a key"),
        ("a: &x [*x]", "line 1: not YAML: found unconstructable recursive node"),
        ("a: 1\nb: *y", "line 2: not YAML"),
    ],
)
def test_refusals_name_the_line(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_yaml(text.encode(), "f")
    assert f"f: {problem}" in caught.value.message


def test_merge_keys_and_aliases() -> None:
    loaded = load_yaml(b"base: &b {lr: 0.1, n: 007}\nrun: {<<: *b, lr: 0.2}", "f")
    assert loaded["run"] == {"lr": 0.2, "n": "007"}


WORDS = ["yes", "no", "on", "off", "true", "False", "null", "~", "0755", "0x1F", "1e5", ".inf", "1_000"]
PLAIN = st.one_of(
    st.from_regex(r"[-+]?[0-9]{1,4}([:_.e-][0-9]{1,4}){0,2}", fullmatch=True),
    st.sampled_from(WORDS),
    st.from_regex(r"[a-zA-Z0-9_./+-]{1,12}", fullmatch=True).filter(lambda text: text[0] not in "-."),
)


@given(st.lists(PLAIN, min_size=1, max_size=5))
def test_environment_tags_and_words_arrive_as_typed(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    file = tmp_path_factory.mktemp("typed") / "hop.yaml"
    values = {f"K{index}": text for index, text in enumerate(texts) if text.lower() not in ("null", "~")}
    pairs = "".join(f"  {key}: {text}\n" for key, text in values.items()) or "  K: a\n"
    words = "".join(f"    - {text}\n" for text in texts)
    file.write_text(f"roles:\n- command:\n    - sh\n{words}env:\n{pairs}tags:\n{pairs}")
    request = read_run_file(file, folder=Path())
    typed = values or {"K": "a"}
    assert (request.env, request.tags) == (typed, typed)
    assert request.roles[0].command == ("sh", *texts)


ANY_TEXT = st.text("aé \t'\"#:,[]{}&*!|>%@`-?~", max_size=8)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False), PLAIN, ANY_TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_dumped_value_loads_equal(value: Any) -> None:
    text = dump_yaml({"value": value})
    assert load_yaml(text.encode(), "f") == {"value": value}
    if not any(mark in text for mark in ("e", ".")):  # YAML 1.1 takes 1e5 for a text
        assert yaml.safe_load(text) == {"value": value}
