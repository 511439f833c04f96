"""Environments are read from the files that projects have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from blake3 import blake3

from hopyard.api_client import types as api
from hopyard.client.build_environment import build_environment, changed_metadata
from hopyard.client.environment_files import read_environment_file, read_script_metadata
from hopyard.client.python_version import choose_version, is_allowed
from hopyard.config.run_request import RoleRequest, RunRequest
from hopyard.errors import SpecError

PROJECT = """
[project]
name = "proj"
requires-python = ">=3.9"
dependencies = ["six", "lib"]
[project.optional-dependencies]
plot = ["matplotlib"]
[tool.uv.sources]
lib = { git = "https://git.example/lib", tag = "v1" }
"""
LOCKED_PROJECT = """
[project]
name = "proj"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["six"]
[project.optional-dependencies]
plot = ["idna"]
[dependency-groups]
dev = ["certifi"]
"""
LOCK = (
    """
version = 1
revision = 2
requires-python = ">=3.11"
"""
    + "".join(
        f"""
[[package]]
name = "{name}"
version = "1.0"
source = {{ registry = "https://index.example/simple" }}
wheels = [{{ url = "https://host.example/{name}-1.0-py3-none-any.whl", hash = "sha256:{64 * "a"}" }}]
"""
        for name in ("certifi", "idna", "six")
    )
    + """
[[package]]
name = "proj"
version = "1.0"
source = { virtual = "." }
dependencies = [{ name = "six" }]
[package.optional-dependencies]
plot = [{ name = "idna" }]
[package.dev-dependencies]
dev = [{ name = "certifi" }]
[package.metadata]
requires-dist = [{ name = "idna", marker = "extra == 'plot'" }, { name = "six" }]
provides-extras = ["plot"]
[package.metadata.requires-dev]
dev = [{ name = "certifi" }]
"""
)
SCRIPT = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.9"
# dependencies = [
#   "idna<4",
# ]
# ///
import idna
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def test_project_and_its_extras(folder: Path) -> None:
    required = read_environment_file(Path("pyproject.toml"), folder, {})
    assert required.requirements == "six\nlib @ git+https://git.example/lib@v1\n"
    assert required.sources == {"proj": "."} and required.python == ""
    (folder / "requirements.txt").write_text("-e .[plot]\nidna\n")
    required = read_environment_file(Path("requirements.txt"), folder, {})
    assert required.requirements.split("\n")[:2] == ["idna", "six"] and "matplotlib" in required.requirements
    assert required.sources == {"proj": "."}
    (folder / "requirements.txt").write_text("-e .[absent]\n")
    with pytest.raises(SpecError, match="has no extra `absent`"):
        read_environment_file(Path("requirements.txt"), folder, {})


def test_conda_file_with_packages_of_pip_only(folder: Path) -> None:
    (folder / "environment.yml").write_text("dependencies: [python=3.12, pip, {pip: [six, idna==3.4]}]")
    required = read_environment_file(Path("environment.yml"), folder, {})
    assert (required.requirements, required.python) == ("six\nidna==3.4\n", "3.12")
    (folder / "environment.yml").write_text("dependencies: [python=3.12, numpy=2]")
    with pytest.raises(SpecError, match="only conda installs numpy=2"):
        read_environment_file(Path("environment.yml"), folder, {})


def test_pylock(folder: Path) -> None:
    (folder / "pylock.toml").write_text(
        '[[packages]]\nname = "six"\nversion = "1.16.0"\nwheels = [{hashes = {sha256 = "ab"}}]\n'
    )
    required = read_environment_file(Path("pylock.toml"), folder, {})
    assert required.requirements == "six==1.16.0 --hash=sha256:ab\n"
    (folder / "pylock.toml").write_text(
        '[[packages]]\nname = "six"\nversion = "1.16.0"\nindex = "https://own.example/simple"\n'
    )
    required = read_environment_file(Path("pylock.toml"), folder, {})
    assert required.requirements == "--extra-index-url https://own.example/simple\nsix==1.16.0\n"


def test_pylock_with_extras_and_groups(folder: Path) -> None:
    (folder / "pylock.toml").write_text(
        'extras = ["plot"]\ndependency-groups = ["Dev_Tools", "base"]\ndefault-groups = ["base"]\n'
        + "".join(
            f'[[packages]]\nname = "{name}"\nversion = "1"\nmarker = "{marker}"\n'
            for name, marker in {
                "a": "'plot' in extras and python_version > '3.0'",
                "b": "'dev-tools' in dependency_groups or 'plot' in extras",
                "c": "'base' in dependency_groups",
                "d": "'plot' not in extras",
            }.items()
        )
    )

    def lines(words: str) -> list[str]:
        return read_environment_file(Path(f"pylock.toml{words}"), folder, {}).requirements.splitlines()

    assert lines("") == ["c==1", "d==1"]
    assert lines("[plot]") == ["a==1 ; python_version > '3.0'", "b==1", "c==1"]
    assert lines(":dev.tools") == ["b==1", "c==1", "d==1"]
    for words, problem in (("[no]", "has no extra `no`"), (":no", "has no dependency group `no`")):
        with pytest.raises(SpecError, match=problem):
            lines(words)


def test_uv_lock_with_extras_and_groups(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(LOCKED_PROJECT)
    (folder / "uv.lock").write_text(LOCK)
    for path, names in (
        ("uv.lock", ["six"]),
        ("uv.lock[plot]", ["idna", "six"]),
        ("uv.lock[plot]:dev", ["certifi", "idna", "six"]),
    ):
        required = read_environment_file(Path(path), folder, {})
        lines = [line for line in required.requirements.splitlines() if "==" in line]
        assert [line.partition("==")[0] for line in lines] == names
        assert required.requirements.count("--hash=sha256:") == len(names)
        assert required.sources == {"proj": "."}
    with pytest.raises(SpecError, match="cannot be exported"):
        read_environment_file(Path("uv.lock[absent]"), folder, {})


def test_script_with_inline_metadata_gets_its_environment(folder: Path) -> None:
    (folder / "a.py").write_text(SCRIPT)
    request = RunRequest(roles=(RoleRequest(("python", "-u", "a.py")),), project="p")
    blobs: dict[str, bytes] = {}
    environment = build_environment(
        request, folder, None, blobs, lambda _text: None, commands=[["python", "a.py"]], files=set()
    )
    assert blobs[environment["requirements"] or ""] == b"idna<4\n"
    assert "requirements" not in build_environment(
        request, folder, sys.executable, blobs, lambda _text: None, commands=[["python", "a.py"]], files=set()
    )
    (folder / "a.py").write_text(SCRIPT.replace("# ///\n", "", 1))
    assert read_script_metadata(folder / "a.py") is None


def test_fork_has_the_environment_of_changed_metadata(folder: Path) -> None:
    def script(*packages: str, python: str = "3.12") -> bytes:
        listed = ", ".join(f'"{package}"' for package in packages)
        block = f'# requires-python = "=={python}.*"\n# dependencies = [{listed}]\n# ///\n'
        return f"# /// script\n{block}".encode()

    def digest(text: bytes) -> str:
        return str(blake3(text).hexdigest())

    def change(before: bytes, now: bytes, used: str, python: str = "3.12") -> str:
        (folder / "t.py").write_bytes(now)
        extras: dict[str, bytes] = {}
        command = [["python", "t.py"]]
        recorded: api.EnvironmentIn = {"requirements": used, "python": python}
        name, changed = changed_metadata(recorded, command, folder, lambda _: before, extras)
        if changed is None:
            return "kept"
        assert name == "t.py" and changed["interpreter"] == ""
        text = extras[changed["requirements"] or ""].decode()
        return f"{text.split()} {changed['python']}"

    six, both = script("six"), script("six", "idna", python="3.13")
    used = digest(b"six\n")
    assert change(six, six, used) == "kept"
    assert change(six, both, used) == "['six', 'idna'] 3.13"
    assert change(b"", both, "") == "['six', 'idna'] 3.13"  # the script had none, and ran in an interpreter
    assert change(six, script("idna<3.4"), used, "3.12.4") == "['idna<3.4'] 3.12.4"  # of --python
    assert change(six, both, digest(b"torch\n")) == "kept"  # of --requirements
    assert change(b"", both, digest(b"torch\n")) == "kept"
    assert change(six, both, "") == "kept"  # of --python, an interpreter
    assert change(six, b"import six\n", used) == "kept"


def test_secret_names_stay_in_the_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "abc")
    (folder / "r.txt").write_text("--index-url https://me:${TOKEN}@index.example/simple\n")
    roles = (RoleRequest(("python", "-u", "a.py")),)
    request = RunRequest(roles=roles, project="p", requirements=Path("r.txt"), secrets=("TOKEN",))
    blobs: dict[str, bytes] = {}
    build_environment(
        request, folder, None, blobs, lambda _text: None, commands=[["python", "a.py"]], files=set()
    )
    assert b"${TOKEN}" in next(iter(blobs.values()))
    request = RunRequest(roles=roles, project="p", requirements=Path("r.txt"))
    with pytest.raises(SpecError, match="password or token"):
        build_environment(
            request, folder, None, blobs, lambda _text: None, commands=[["python", "a.py"]], files=set()
        )
    (folder / "r.txt").write_text("--extra-index-url https://index.example/${TOKEN}/simple\n")
    with pytest.raises(SpecError, match="password or token"):
        build_environment(
            request, folder, None, blobs, lambda _text: None, commands=[["python", "a.py"]], files=set()
        )


def test_project_outside_of_the_code_is_refused(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "r.txt").write_text("-e ..\n")
    with pytest.raises(SpecError, match="outside the code"):
        read_environment_file(folder / "code" / "r.txt", folder / "code", {})


def test_unusual_range_of_versions_does_not_stop_a_run(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace(">=3.9", ">=3.9rc1"))
    request = RunRequest(roles=(RoleRequest(("python", "-u", "a.py")),), project="p")
    assert build_environment(
        request, folder, sys.executable, {}, lambda _text: None, commands=[["python", "a.py"]], files=set()
    )["interpreter"]


def test_old_interpreter_is_refused_for_the_sdk(folder: Path) -> None:
    (folder / "old" / "bin").mkdir(parents=True)
    (folder / "old" / "lib" / "python3.8").mkdir(parents=True)
    (folder / "old" / "bin" / "python").touch(0o755)
    (folder / "a.py").write_text("import hopyard as hop\n")
    request = RunRequest(roles=(RoleRequest(("python", "-u", "a.py")),), project="p")
    interpreter = str(folder / "old" / "bin" / "python")
    with pytest.raises(SpecError, match=r"needs Python 3.9; .* is Python 3.8"):
        build_environment(
            request, folder, interpreter, {}, lambda _text: None, commands=[["python", "a.py"]], files=set()
        )
    (folder / "a.py").write_text("print(1)\n")
    (folder / "pyproject.toml").write_text(PROJECT.replace(">=3.9", ">=3.12"))
    with pytest.raises(SpecError, match=r"pyproject\.toml requires Python >=3\.12, and .* is Python 3\.8"):
        build_environment(request, folder, interpreter, {}, print, commands=[["python", "a.py"]], files=set())
    (folder / "pyproject.toml").unlink()
    (folder / "a.py").write_text("\ufeff" + SCRIPT.partition("\n")[2].replace(">=3.9", ">=3.11"))
    with pytest.raises(SpecError, match=r"a\.py requires Python >=3\.11") as refused:
        build_environment(request, folder, interpreter, {}, print, commands=[["python", "a.py"]], files=set())
    assert "leave out --python" in refused.value.hints[1]
    lines: list[str] = []
    (folder / "a.py").write_text(SCRIPT.partition("\n")[2].replace(">=3.9", ">=3.6,<3.8"))
    build_environment(
        request, folder, interpreter, {}, lines.append, commands=[["python", "a.py"]], files=set()
    )
    assert lines == [f"warning: a.py requires Python >=3.6,<3.8, and {interpreter} is Python 3.8"]


@pytest.mark.parametrize(
    ("version", "requirement", "expected"),
    [
        ((3, 11, 4), ">=3.10,<3.13", True),
        ((3, 13, 0), ">=3.10,<3.13", False),
        ((3, 11, 4), "~=3.10", True),
        ((3, 11, 4), "~=3.10.2", False),
        ((3, 11, 4), "==3.11.*", True),
        ((3, 11, 4), "!=3.11.*", False),
        ((3, 11, 0), "==3.11", True),
        ((3, 11, 4), "", True),
    ],
)
def test_ranges_of_versions(version: tuple[int, ...], requirement: str, expected: bool) -> None:
    assert is_allowed(version, requirement, name="f") is expected


def test_nearest_allowed_version_is_chosen() -> None:
    own = ".".join(map(str, sys.version_info[:2]))
    assert choose_version(f">={own}", name="f") == ""
    assert choose_version("<3.9", name="f") == "3.8" and choose_version("==3.14.*", name="f") == "3.14"
    with pytest.raises(SpecError, match="no version of Python meets"):
        choose_version(">=3.12,<3.12", name="f")
