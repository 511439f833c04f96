"""Searched parameters that no trial reads, and those that the code reads in one branch only."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.domain.space import Choice, Constant, Parameter, Space
from hopyard.domain.study import Goal, Parallel, StudySpec
from hopyard.errors import StudyFailed
from hopyard.studies.code_reads import MAX_UNREAD_TRIALS, declared_names, trainable_reads
from hopyard.studies.trial_runs.script_params import ScriptParams

SPACE = Space(
    (
        Parameter("lr", Choice((0.1, 0.2))),
        Parameter("momentum", Choice((0.8, 0.9))),
        Parameter("fixed", Constant(1)),
    )
)
PARAMS = {"lr": 0.1, "momentum": 0.9, "fixed": 1}
TRAIN = """
import hopyard as hop
p = hop.params(lr=0.1)
if p.lr > 0.15:
    q = hop.params(momentum=0.5)
"""
MODEL = """
from parts import build
class Model:
    def init(self, config):
        return build(config, config["depth"], getattr(config, "width", 3), config.params.get("dropout"))
"""


def study() -> StudySpec:
    trial = {"project": "p", "roles": [{"command": ["python", "train.py", "--fast"]}]}
    return StudySpec("s", SPACE, "loss", Goal.MIN, Parallel.TRIALS, trial=trial)


def test_parameter_that_the_code_reads_in_a_branch_has_more_trials(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    names = declared_names(study(), tmp_path)
    assert names == {"lr", "momentum"}
    params = ScriptParams(study(), names)
    params.declare(["lr"])
    for _ in range(MAX_UNREAD_TRIALS - 1):
        params.check(PARAMS)
    assert params.never_read == ["momentum"]
    with pytest.raises(StudyFailed, match="searches the parameter `momentum`"):
        params.check(PARAMS)
    params.declare(["momentum"])
    params.check(PARAMS)
    assert params.never_read == []


def test_hint_for_a_notebook_is_the_tag_of_a_cell() -> None:
    roles = [{"command": ["python", "-m", "hopyard.sdk.notebook", "a.ipynb"]}]
    form = {"style": "notebook", "source": "before the first cell of a.ipynb", "script": "a.ipynb"}
    trial = {"project": "p", "roles": roles, "param_format": form}
    params = ScriptParams(StudySpec("s", SPACE, "loss", Goal.MIN, Parallel.TRIALS, trial=trial))
    params.declare(["momentum"])
    with pytest.raises(StudyFailed) as error:
        params.check(PARAMS, ["lr"])
    hint = "assign `lr = …` in one cell of the notebook, and tag that cell `parameters`"
    assert error.value.hints == (hint,)


def test_parameter_that_the_code_never_names_ends_the_study_at_once(tmp_path: Path) -> None:
    params = ScriptParams(study(), declared_names(study(), tmp_path))  # there is no code
    params.declare(["lr"])
    with pytest.raises(StudyFailed, match="`momentum`, but the script takes only lr"):
        params.check(PARAMS)
    params.check({"lr": 0.1})  # it does not exist in this trial


def test_names_that_a_trainable_reads_are_found_in_its_modules(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "parts.py").write_text("def build(config, *_):\n    return config.units\n")
    for trainable in ("model.py:Model", "model:Model"):
        names = trainable_reads(trainable, tmp_path)
        assert {"units", "depth", "width", "dropout"} <= names
        assert "lr" not in names
