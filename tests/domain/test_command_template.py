"""Placeholders in commands."""

from __future__ import annotations

import pytest

from hopyard.domain.command_template import check_template, fill_template, placeholder_names
from hopyard.errors import SpecError

VALUES = {"lr": "0.1", "model.dim": "8", "dataset:mnist": "/data/m"}


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{lr}", "0.1"),
        ("${lr}", "0.1"),
        ("--lr={lr}", "--lr=0.1"),
        ("+model.dim=${model.dim}", "+model.dim=8"),
        ("{dataset:mnist}/train", "/data/m/train"),
        ("echo ${lr} ${HOME}", "echo 0.1 ${HOME}"),
        ("{{lr}}", "{lr}"),
        ("{{dataset:mnist}} is {dataset:mnist}", "{dataset:mnist} is /data/m"),
        ("f'{{x}} {y}'", "f'{{x}} {y}'"),
        ('{"lr": 1}', '{"lr": 1}'),
        ("awk '{print $1}'", "awk '{print $1}'"),
    ],
)
def test_placeholders_are_filled_and_other_braces_stay(word: str, filled: str) -> None:
    assert fill_template([word], VALUES) == [filled]


def test_names_are_listed_once() -> None:
    assert placeholder_names(["{lr}", "a={b} ${lr}", "{{c}}", "{dataset:m}"]) == ["lr", "b", "dataset:m"]


def test_unknown_name_of_a_plain_placeholder_is_refused() -> None:
    check_template(["{lr}", "{dataset:x}", "{{foo}}", "echo ${HOME} {x}"], ["lr"], what="command")
    with pytest.raises(SpecError, match="names no parameter") as error:
        check_template(["--lr={lrr}"], ["lr"], what="command")
    assert error.value.hints[0] == "did you mean `{lr}`?"
