"""Parameters that a script's own file of settings does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.client.settings_file import check_settings
from hopyard.errors import SpecError

FILES = {
    "s.yaml": "# settings\nlr: 0.1\noptim: {name: sgd}\nlayers: [4, 8]\na.b: 1\n",
    "s.toml": 'lr = 0.1\nlayers = [4, 8]\n"a.b" = 1\n[optim]\nname = "sgd"\n',
    "s.json": '{"lr": 0.1, "optim": {"name": "sgd"}, "layers": [4, 8], "a.b": 1}',
}


@pytest.mark.parametrize("name", FILES)
def test_unknown_setting_is_an_error_of_a_study_and_a_warning_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    lines: list[str] = []
    known = ["lr", "optim.name", "layers", "layers.1", "a.b"]
    check_settings(known, known, name, tmp_path, lines.append)
    assert lines == []
    check_settings(["optim.nme", "wd"], [], name, tmp_path, lines.append)
    assert lines == [
        f"warning: {name} has no setting `optim.nme`; it is added in the run",
        "hint: did you mean `optim.name`?",
        f"warning: {name} has no setting `wd`; it is added in the run",
    ]
    with pytest.raises(SpecError, match=f"the search over optim.nme: {name} has no such setting") as error:
        check_settings(["lr", "optim.nme"], ["optim.nme"], name, tmp_path, lines.append)
    assert error.value.hints == (
        "did you mean `optim.name`?",
        f"if the script reads it, add `optim.nme` with its usual value to {name}",
    )


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "lr: !own 3\n"])
def test_nothing_is_claimed_of_a_file_that_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    lines: list[str] = []
    for name in ("s.yaml", "absent.json"):
        check_settings(["wd"], ["wd"], name, tmp_path, lines.append)
    assert lines == []
