"""The check of an environment that was built."""

from __future__ import annotations

import sys
from pathlib import Path

from hopyard.replica.preflight import find_environment_problem, find_python_problem
from hopyard.replica.python_environment import PythonInterpreter

LOCK = b"ruamel-yaml==0.18 \\\n    --hash=sha256:00\ncolorama==0.4 ; sys_platform == 'win32'\n"


def test_interpreter_that_does_not_start_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no library >&2\nexit 3\n")
    broken.chmod(0o755)
    assert find_python_problem(sys.executable) == ""
    assert find_python_problem(str(broken)) == f"the interpreter {broken} does not start: no library"
    assert "No such file" in find_python_problem(str(tmp_path / "gone"))


def test_package_of_the_lock_that_is_not_installed_is_named(tmp_path: Path) -> None:
    interpreter = PythonInterpreter(sys.executable, tmp_path, LOCK)
    assert find_environment_problem(interpreter) == "package ruamel-yaml of its lock is not installed"
    (tmp_path / "lib/python3.12/site-packages/ruamel.yaml-0.18.dist-info").mkdir(parents=True)
    assert find_environment_problem(interpreter) == "", "a package for another platform is not needed"
