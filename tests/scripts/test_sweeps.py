"""Studies of four trials over scripts that take their parameters in different ways."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell

GRID = ["--searcher", "grid", "--concurrent", "2", "--metric", "loss", "--mode", "min"]


@pytest.mark.parametrize(
    ("script", "param", "form"),
    [
        ("by_arguments.py", "lr", "arguments (argparse in by_arguments.py)"),
        ("by_overrides.py", "optim.lr", "overrides name=value (Hydra in by_overrides.py)"),
        ("by_variables.py", "lr", "environment variables (os.environ in by_variables.py)"),
        ("by_file.py", "optim.lr", "values of the file (settings.yaml)"),
    ],
)
def test_each_trial_gets_its_value(scripts: Shell, script: str, param: str, form: str) -> None:
    scripts.folder = scripts.folder / "sweep"
    options = ["--params-as", "file:settings.yaml"] if script == "by_file.py" else []
    study = scripts.hop("search", *GRID, *options, "-p", f"{param}=0.1,0.2,0.3,0.4", script)
    assert study.code == 0 and form in study.stderr_text, study.stderr_text
    shown = scripts.hop("search", "show", "--json").json
    losses = {trial["params"][param]: trial["value"] for trial in shown["trials"]}
    assert losses == {0.1: 0.2, 0.2: 0.1, 0.3: 0.0, 0.4: 0.1}
    best = next(trial for trial in shown["trials"] if trial["trial"] == shown["best"])
    assert best["params"] == {param: 0.3}


def test_search_over_a_param_that_the_script_lacks_is_refused(scripts: Shell) -> None:
    refused = scripts.hop("search", *GRID, "-p", "lrr=0.1,0.2", "click_train.py")
    assert refused.code != 0 and "the search over lrr: click_train.py has" in refused.stderr_text
    scripts.folder = scripts.folder / "sweep"
    failed = scripts.hop("search", *GRID, "-p", "optim.lrr=0.1,0.2", "by_overrides.py")
    assert failed.code != 0
    assert "the settings of by_overrides.py have no optim.lrr" in failed.stderr_text
    assert "Key 'lrr' is not in struct" in failed.stderr_text
