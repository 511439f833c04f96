"""Packages that are installed editable come from the packed code, however the build tool finds them."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import hopyard.sdk.startup

START = Path(hopyard.sdk.startup.__file__).parent / "path"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Returns the submitter's folder, the packed copy, and the folder of packages of an environment."""
    for name in ("origin", "copy"):
        package = tmp_path / name / "lib" / "proj"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"PLACE = '{name}'\n")
        (package / "net.py").write_text(f"PLACE = '{name}'\n")
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    return tmp_path / "origin", tmp_path / "copy", site


def run(folders: tuple[Path, Path, Path], code: str, **variables: str) -> tuple[str, str]:
    """Returns stdout and stderr of the environment's interpreter, started as the replica starts it."""
    origin, copy, site = folders
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": str(START),
        "HOPYARD_REPLICA_DIR": str(origin.parent),
        "HOPYARD_CODE_ORIGIN": str(origin),
        "HOPYARD_CODE_COPY": str(copy),
        **variables,
    }
    command = [str(site.parents[2] / "bin" / "python"), "-c", code]
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    return result.stdout.strip(), result.stderr.strip()


NET = "import proj.net; print(proj.net.PLACE)"


def test_path_of_a_pth_file(folders: tuple[Path, Path, Path]) -> None:
    (folders[2] / "proj.pth").write_text(f"{folders[0]}/lib\n")
    assert run(folders, NET) == ("copy", "")
    assert run(folders, NET, HOPYARD_STARTUP_HOOKS="0") == ("origin", "")


def test_finder_of_setuptools(folders: tuple[Path, Path, Path]) -> None:
    name = "__editable___proj_1_0_finder"
    # the package has another name than its folder
    mapping = {"renamed": str(folders[0] / "lib" / "proj")}
    call = f"_finder_template({name!r}, {mapping!r}, {{}})"
    code = f"import setuptools.command.editable_wheel as wheel; print(wheel.{call})"
    # in a process of its own: setuptools replaces the distutils of its interpreter
    generated = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if generated.returncode:
        pytest.skip("needs setuptools")
    source = generated.stdout
    (folders[2] / f"{name}.py").write_text(source)
    (folders[2] / "proj.pth").write_text(f"import {name}; {name}.install()\n")
    assert run(folders, NET.replace("proj", "renamed")) == ("copy", "")


FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    def find_spec(self, name, path=None, target=None):
        files = {"proj": "proj/__init__.py", "proj.net": "proj/net.py"}
        if name in files:
            return spec_from_file_location(name, f"{FOLDER}/{files[name]}")

sys.meta_path.insert(0, Finder())
"""


def test_finder_that_knows_each_module(folders: tuple[Path, Path, Path]) -> None:
    (folders[2] / "_proj_loader.py").write_text(f"FOLDER = '{folders[0]}/lib'\n{FINDER}")
    (folders[2] / "proj.pth").write_text("import _proj_loader\n")
    assert run(folders, NET) == ("copy", "")
    assert run(folders, NET, HOPYARD_STARTUP_HOOKS="0") == ("origin", "")


def test_link_in_the_folder_of_packages(folders: tuple[Path, Path, Path]) -> None:
    (folders[2] / "proj").symlink_to(folders[0] / "lib" / "proj")
    assert run(folders, NET) == ("copy", "")
    (folders[2] / "proj").unlink()
    (folders[2] / "space").mkdir()  # a part of a namespace package
    (folders[2] / "space" / "proj").symlink_to(folders[0] / "lib" / "proj")
    assert run(folders, "import space.proj.net as net; print(net.PLACE, net.__name__)") == (
        "copy space.proj.net",
        "",
    )


def test_module_that_is_not_packed_comes_from_the_original(folders: tuple[Path, Path, Path]) -> None:
    origin, _, site = folders
    (site / "proj.pth").write_text(f"{origin}/lib\n")
    (origin / "lib" / "proj" / "_version.py").write_text("version = '1.2'\n")
    output, errors = run(folders, "import proj._version as v, proj; print(v.version, proj.PLACE)")
    assert output == "1.2 copy"
    assert errors == (
        f"hopyard: proj._version is not in the packed code: it comes from {origin}/lib/proj/_version.py"
    )
    output, errors = run(folders, "import proj.absent")
    assert output == "" and "No module named 'proj.absent'" in errors


def test_module_that_is_not_packed_with_a_link_to_the_copy(folders: tuple[Path, Path, Path]) -> None:
    """Without namespaces, Python finds the script's packages at the real path of the working folder."""
    origin, copy, site = folders
    (origin / "lib" / "proj" / "_version.py").write_text("version = '1.2'\n")
    (copy.parent / "place").symlink_to(copy)
    code = f"import sys; sys.path.insert(0, '{copy}/lib'); import proj._version as v; print(v.version)"
    assert run((origin, copy.parent / "place", site), code)[0] == "1.2"


def test_other_paths_stay(folders: tuple[Path, Path, Path]) -> None:
    (folders[2] / "proj.pth").write_text(f"{folders[0]}/absent\n")
    (folders[0] / "absent").mkdir()
    (folders[0] / "absent" / "other.py").write_text("PLACE = 'kept'\n")
    assert run(folders, "import other; print(other.PLACE)") == ("kept", "")
