"""Import hooks in a fresh interpreter: order, failures, and the `sitecustomize` that they hide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hopyard.sdk import startup

FOLDER = Path(startup.__file__).parent / "path"
HOOKS = """
import hopyard_startup.import_hooks as hooks
hooks.run_after_import("late", lambda module: print("hook sees", module.value))
hooks.run_after_import("late", lambda module: 1 / 0)
hooks.run_after_import("json", lambda module: print("json has", callable(module.loads)))
hooks.run_after_import("package.inner", lambda module: print("inner", module.__name__))
import late, json, package.inner
import inspect
print(inspect.getsource(late).strip(), "in", late.__loader__.__class__.__name__)
"""


def run_python(code: str, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), str(folder)]), **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_hooks_run_after_the_import_and_never_break_it(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("value = 3\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "inner.py").touch()
    result = run_python(HOOKS, tmp_path, HOPYARD_REPLICA_DIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "hook sees 3",
        "json has True",
        "inner package.inner",
        "value = 3 in SourceFileLoader",
    ]
    assert result.stderr.count("the hook on late failed, so it is off: ZeroDivisionError") == 1


def test_hidden_sitecustomize_runs_and_the_path_is_clean(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __file__\n")
    code = "import sys; print(theirs); print('hopyard_startup' in sys.modules, *sys.path, sep='\\n')"
    on = run_python(code, tmp_path, HOPYARD_REPLICA_DIR=str(tmp_path)).stdout.splitlines()
    assert on[:2] == [str(tmp_path / "sitecustomize.py"), "True"] and str(FOLDER) not in on
    off = run_python(code, tmp_path, HOPYARD_REPLICA_DIR=str(tmp_path), HOPYARD_STARTUP_HOOKS="0")
    assert off.stdout.splitlines()[:2] == [str(tmp_path / "sitecustomize.py"), "False"]
    outside = run_python(code, tmp_path, HOPYARD_REPLICA_DIR="").stdout.splitlines()
    assert outside[1] == "False", "no run, so no hooks"


_TRAINER = """
class Epochs:
    _batches_that_stepped = 7

class Fit:
    epoch_loop = Epochs()

class Trainer:
    loggers, is_global_zero, current_epoch, fit_loop = [], True, 2, Fit()

class _LoggerConnector:
    def __init__(self, trainer):
        self.trainer = trainer

    def log_metrics(self, metrics, step=None):
        return "logged"
"""
_UNLOGGED = """
import hopyard_startup.reports as reports
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import Trainer, _LoggerConnector
from hopyard_startup import trainer_logs
trainer_logs.log_metrics = lambda library, values, step: print(library, values, step)
trainer = Trainer()
connector = _LoggerConnector(trainer)
print(connector.log_metrics({"val_loss": 0.5}))
connector.log_metrics({"val_loss": 0.4, "step": 9.0})
connector.log_metrics({"val_loss": 0.3}, 11)
trainer.loggers = ["a logger"]
connector.log_metrics({"val_loss": 0.2}, 12)
"""


def test_trainer_of_lightning_without_logger_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "lightning" / "pytorch" / "trainer" / "connectors" / "logger_connector"
    folder.mkdir(parents=True)
    for parent in (folder, *folder.parents[:4]):
        (parent / "__init__.py").touch()
    (folder / "logger_connector.py").write_text(_TRAINER)
    result = run_python(_UNLOGGED, tmp_path, HOPYARD_REPLICA_DIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "lightning {'val_loss': 0.5, 'epoch': 2} 7",
        "logged",
        "lightning {'val_loss': 0.4} 9",
        "lightning {'val_loss': 0.3} 11",
    ]
