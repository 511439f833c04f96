"""Archives and projects of the code in requirements; extras and groups of a project."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hopyard.client.environment_files import read_environment_file
from hopyard.client.local_requirements import ARCHIVE_MARK, recorded_archives
from hopyard.errors import SpecError

WHEEL = "dist/lib-1.0-py3-none-any.whl"
PROJECT = """
[project]
name = "proj"
dependencies = ["six"]
[project.optional-dependencies]
plot = ["matplotlib"]
[dependency-groups]
dev = ["pytest", {include-group = "Type_Check"}]
type-check = ["mypy"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    (folder / "dist").mkdir(parents=True)
    (folder / WHEEL).write_bytes(b"one")
    (folder / "pyproject.toml").write_text(PROJECT)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"./{WHEEL}", f"./{WHEEL}"),
        (WHEEL, f"./{WHEEL}"),
        ("lib @ file://FOLDER/" + WHEEL, f"./{WHEEL}"),
        (f"lib[a,b] @ file:./{WHEEL} ; python_version > '3'", f"./{WHEEL}[a,b] ; python_version > '3'"),
        (f"./{WHEEL}[a]", f"./{WHEEL}[a]"),
        (f"./{WHEEL} --hash=sha256:12", f"./{WHEEL} --hash=sha256:12"),
    ],
)
def test_archive_of_the_code_is_named_with_its_digest(folder: Path, line: str, expected: str) -> None:
    other = "six --hash=sha256:34" if "--hash" in line else "six"  # one hash makes all mandatory
    (folder / "r.txt").write_text(line.replace("FOLDER", str(folder)) + f"\n{other}\n")
    required = read_environment_file(Path("r.txt"), folder, {})
    digest = hashlib.sha256(b"one").hexdigest()
    assert required.requirements == f"{other}\n{ARCHIVE_MARK}{digest} {WHEEL}\n{expected}\n"
    assert required.files == (WHEEL,)
    assert recorded_archives(required.requirements, folder) == {WHEEL}


def test_archives_of_recorded_requirements_are_those_of_the_code(folder: Path) -> None:
    (folder / "private.env").touch()  # that another user's run names
    text = f"--find-links dist\n--find-links ../other\n{ARCHIVE_MARK}12 old/absent.whl\n./old/absent.whl\n"
    text += f"{ARCHIVE_MARK}34 private.env\n"
    assert recorded_archives(text, folder) == {WHEEL}


def test_archives_outside_of_the_code_or_absent_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.whl").touch()
    for line, problem in (
        ("../other.whl", "is outside the code"),
        (f"lib @ file://{tmp_path}/other.whl", "is outside the code"),
        ("./absent.whl", r"line 1: there is no file or folder \./absent\.whl"),
    ):
        (folder / "r.txt").write_text(f"{line}\n")
        with pytest.raises(SpecError, match=problem):
            read_environment_file(Path("r.txt"), folder, {})


def test_addresses_and_names_are_no_paths(folder: Path) -> None:
    lines = [
        "six",
        "lib @ https://host.example/lib-1.0.whl",
        "git+https://host.example/lib@v1",
        "lib @ git+ssh://git@host.example/lib",
        "uvicorn[standard] >= 0.3 ; python_version > '3'",
    ]
    text = "".join(f"{line}\n" for line in lines)
    (folder / "r.txt").write_text(text)
    required = read_environment_file(Path("r.txt"), folder, {})
    assert (required.requirements, required.files) == (text, ())


def test_folder_of_links_in_the_code_and_project_without_a_dot(folder: Path) -> None:
    (folder / "libs" / "a").mkdir(parents=True)
    (folder / "libs" / "a" / "pyproject.toml").write_text('[project]\nname = "a"\ndependencies = ["idna"]\n')
    (folder / "dist" / "notes.md").touch()
    (folder / "r.txt").write_text("--find-links dist\n-e libs/a\n")
    required = read_environment_file(Path("r.txt"), folder, {})
    assert required.requirements == "--find-links dist\nidna\n"
    assert (required.sources, required.files) == ({"a": "libs/a"}, (WHEEL,))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pyproject.toml", "six\n"),
        (".", "six\n"),
        ("pyproject.toml[plot]", "six\nmatplotlib\n"),
        (".[plot]:dev", "six\nmatplotlib\npytest\nmypy\n"),
        ("pyproject.toml:Type.Check", "six\nmypy\n"),
    ],
)
def test_extras_and_groups_of_a_project(folder: Path, path: str, expected: str) -> None:
    assert read_environment_file(Path(path), folder, {}).requirements == expected


def test_unknown_extras_and_groups_are_named(folder: Path) -> None:
    with pytest.raises(SpecError, match="has no dependency group `docs`") as error:
        read_environment_file(Path("pyproject.toml:docs"), folder, {})
    assert error.value.hints == ("its groups: dev, type-check",)
    (folder / "r.txt").write_text("six\n")
    with pytest.raises(SpecError, match=r"r\.txt has no extras"):
        read_environment_file(Path("r.txt[plot]"), folder, {})
    (folder / "pyproject.toml").write_text('[dependency-groups]\na = [{include-group = "a"}]\n')
    with pytest.raises(SpecError, match="includes itself"):
        read_environment_file(Path("pyproject.toml:a"), folder, {})
