"""The wheel: built, looked into, and used from a folder that is not the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .tree import PACKAGE, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the backend that pip would call, without its isolation: no network."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_contains_every_file_of_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        f"hopyard/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert "hopyard/py.typed" in names
    assert any(name.startswith("hopyard/stores/sql/") and "migrations" in name for name in names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith("hopyard")]


def test_built_web_ui_is_of_todays_sources() -> None:
    command = [sys.executable, ROOT / "scripts" / "web_sources.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_installed_package_works_without_repository(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "HOPYARD_HOME": str(tmp_path / "home")}
    where = subprocess.run(
        [sys.executable, "-c", "import hopyard; print(hopyard.__file__)"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "hopyard.cli", "--help"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dataset" in result.stdout
    up = subprocess.run(
        [sys.executable, "-m", "hopyard.cli", "up"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert up.returncode == 0, up.stderr
    finally:
        subprocess.run(
            [sys.executable, "-m", "hopyard.cli", "down", "--stop-runs"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            check=False,
        )
