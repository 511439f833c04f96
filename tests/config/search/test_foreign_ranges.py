"""Ranges and keys of other programs: read with their meaning, or refused with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.config.search.search_file import search_from_mapping
from hopyard.config.search.space import read_space
from hopyard.domain.space import Integer, Uniform
from hopyard.errors import SpecError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tune.loguniform(1e-4, 1e-1)", Uniform(1e-4, 1e-1, log=True)),
        ("trial.suggest_float('x', 0.0, 1.0)", Uniform(0.0, 1.0)),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1}, Uniform(1e-4, 0.1, log=True)),
        ({"distribution": "int_uniform", "min": 1, "max": 8}, Integer(1, 8)),
        ({"type": "double", "minval": 0.0, "maxval": 1.0}, Uniform(0.0, 1.0)),
        ({"type": "int", "minval": 1, "maxval": 8}, Integer(1, 8)),
        ("qrandint(16, 256, 16)", Integer(16, 256, step=16)),
        ("quniform(16.0, 256.0, 16.0)", Uniform(16.0, 256.0, step=16.0)),
    ],
)
def test_range_of_another_program_is_read(value: Any, expected: Any) -> None:
    assert read_space({"x": value}).parameters[0].domain == expected


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("hp.loguniform(1, 3)", "write loguniform(1e-4, 1e-1) with the ends"),
        ("np.random.uniform(0, 1)", "write uniform(…) without `np.random.`"),
        ("foo.uniform(0, 1)", "write uniform(…) without `foo.`"),
        ("quniform(16, 256, 16)", "write qrandint(16, 256, 16)"),
        ({"distribution": "log_uniform", "min": -9, "max": -2}, "write log_uniform_values"),
        ({"type": "log", "base": 10, "minval": -4, "maxval": -1}, "log: true"),
    ],
)
def test_range_with_another_meaning_is_refused(value: Any, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_space({"x": value})
    assert any(hint in each for each in refused.value.hints), refused.value.hints


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("program", "train.py", "write `script: train.py`"),
        ("method", "bayes", "write `searcher: random`"),
        ("parameters", {"lr": {"min": 0.1, "max": 1.0}}, "write `space: {lr: …}`"),
        ("metric", {"name": "val_loss", "goal": "minimize"}, "write `metric: NAME`"),
    ],
)
def test_key_of_another_program_names_ours(tmp_path: Path, key: str, value: Any, hint: str) -> None:
    mapping = {"metric": "loss", "space": {"lr": [1, 2]}, "command": "true", "searcher": "grid", key: value}
    with pytest.raises(SpecError) as refused:
        search_from_mapping(mapping, tmp_path)
    assert any(hint in each for each in refused.value.hints), refused.value
