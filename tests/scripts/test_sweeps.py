"""Studies of four trials over scripts that take their parameters in different ways."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from tests.scripts.attempts import METRIC_LINE

GRID = ["--searcher", "grid", "--concurrent", "4", "--metric", "loss", "--mode", "min"]
# the words of the study, and the form that the submission states
LOGGING = {
    "by_arguments.py": "arguments (argparse in by_arguments.py)",
    "by_overrides.py": "overrides name=value (Hydra in by_overrides.py)",
    "by_variables.py": "environment variables (os.environ in by_variables.py)",
    "--params-as file:settings.yaml by_file.py": "values of the file (settings.yaml)",
}
PRINTING = {
    "python -- launch.py --nproc 1 argparse_train.py": "arguments (argparse in argparse_train.py)",
    "./train.sh": "arguments (argparse in argparse_train.py)",
    "-m package.train -- --x": "arguments (argparse in package/train.py)",
    "click_train.py": "arguments (click in click_train.py)",
    "-p batch_size=8 typer_train.py -- cnn": "arguments (Typer in typer_train.py)",
    "fire_train.py": "arguments (Fire in fire_train.py)",
    "absl_train.py": "arguments (absl flags in absl_train.py)",
    "tyro_train.py": "arguments (tyro in tyro_train.py)",
    "jsonargparse_train.py -- --seed=3": "jsonargparse",
    "omegaconf_train.py": "OmegaConf",
    "known_args.py -- --dim 16": "arguments (argparse in known_args.py)",
    "hf_train.py": "arguments (HfArgumentParser in hf_train.py)",
}
NESTED = {
    "by_overrides.py": "optim.lr",
    "by_file.py": "optim.lr",
    "tyro_train.py": "optim.lr",
    "jsonargparse_train.py": "model.lr",
}


@pytest.mark.parametrize("words", [*LOGGING, *PRINTING])
def test_each_trial_gets_its_value(scripts: Shell, words: str) -> None:
    options: tuple[str, ...] = METRIC_LINE
    if words in LOGGING:
        scripts.folder, options = scripts.folder / "sweep", ()
    param = next((name for script, name in NESTED.items() if script in words), "lr")
    study = scripts.hop("search", *GRID, *options, "-p", f"{param}=0.1,0.2,0.3,0.4", *words.split())
    assert study.code == 0 and (LOGGING | PRINTING)[words] in study.stderr_text, study.stderr_text
    shown = scripts.hop("search", "show", "--json").json
    losses = {trial["params"][param]: trial["value"] for trial in shown["trials"]}
    distance = 2 if words in PRINTING else 1
    assert losses == {0.1: 0.2 * distance, 0.2: 0.1 * distance, 0.3: 0.0, 0.4: 0.1 * distance}
    best = next(trial for trial in shown["trials"] if trial["trial"] == shown["best"])
    assert best["params"][param] == 0.3


def test_search_over_a_param_that_the_script_lacks_is_refused(scripts: Shell) -> None:
    refused = scripts.hop("search", *GRID, "-p", "lrr=0.1,0.2", "click_train.py")
    assert refused.code != 0 and "the search over lrr: click_train.py has" in refused.stderr_text
    scripts.folder = scripts.folder / "sweep"
    failed = scripts.hop("search", *GRID, "-p", "optim.lrr=0.1,0.2", "by_overrides.py")
    assert failed.code != 0
    assert "the settings of by_overrides.py have no optim.lrr" in failed.stderr_text
    assert "Key 'lrr' is not in struct" in failed.stderr_text
