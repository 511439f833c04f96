"""Forbidden in the repository: addresses of registries, paths of one machine, unpinned or unexplained
packages."""

from __future__ import annotations

import json
import re

import pytest

from .tree import ROOT, imported, modules, project, tracked

# Assembled from parts, so that this file does not contain the searched text.
HOSTS = re.compile(
    r"https?://[a-z0-9.-]*("
    + "|".join(["py" + "pi", "python" + "hosted", "npm" + "js", "deb" + "ian"])
    + r")\.[a-z]+|"
    + r'"resolved": *"http'
)
PATHS = re.compile(
    r"(^|[^A-Za-z0-9_.])/("
    + "|".join(["wo" + "rk", "fa" + "rm", "ro" + "ot", "opt/wh" + "eels", "opt/py" + "pi"])
    + r")/",
    re.M,
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PINS = ROOT / "requirements" / "constraints.txt"


@pytest.mark.parametrize(
    ("pattern", "description"), [(HOSTS, "a registry's address"), (PATHS, "a path of one machine")]
)
def test_no_tracked_file_contains_forbidden_name(pattern: re.Pattern[str], description: str) -> None:
    result = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        result += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0].strip()}"
            for hit in pattern.finditer(text)
        ]
    assert not result, description


def canonical(requirement: str) -> str:
    """A package's name as registries compare it: `PyYAML[x]>=6` → `pyyaml`."""
    result = NAME.match(requirement)
    assert result, requirement
    return re.sub(r"[-_.]+", "-", result[0]).lower()


def declared_requirements(*extras: str) -> set[str]:
    optional = project()["optional-dependencies"]
    return {
        canonical(r) for r in [*project()["dependencies"], *(r for extra in extras for r in optional[extra])]
    } - {"hopyard"}


def test_every_dependency_has_a_reason() -> None:
    result = (ROOT / "docs" / "internals" / "dependencies.md").read_text()
    explained = {canonical(name) for name in re.findall(r"`([^`\n]+)`", result) if NAME.match(name)}
    assert declared_requirements(*project()["optional-dependencies"]) - explained == set()
    web = json.loads((ROOT / "web" / "package.json").read_text())
    named = set(re.findall(r"`([^`\n]+)`", result))
    assert {*web["dependencies"], *web["devDependencies"]} - named == set()


# Packages whose module has another name; None for packages that are not imported but run or loaded by name.
IMPORTED_AS = {
    "nvidia-ml-py": "pynvml",
    "pyyaml": "yaml",
    "httptools": None,
    "uv": None,
    "markdown-it-py": "markdown_it",
}


def test_every_dependency_of_the_program_is_used() -> None:
    used = {name for tree in modules().values() for name in imported(tree)}
    expected = {IMPORTED_AS.get(package, package) for package in declared_requirements()} - {None}
    assert expected <= used


def test_versions_are_pinned_with_hashes_and_without_addresses() -> None:
    text = PINS.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-[^-]|--(?!hash=)|\S+ @ )", text, re.M), "only pins and hashes"
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+==[^ \n]+", entry), entry
        assert "--hash=sha256:" in entry, entry
    pinned = {canonical(entry) for entry in entries}
    assert declared_requirements("demo", "docs", "plot", "postgres", "test") <= pinned
    assert "torch" not in pinned, "which build is right depends on the machine"


def test_licence_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
