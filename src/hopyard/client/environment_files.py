"""Reads the files that describe an environment into requirements and a version of Python.

They are requirements files, `pyproject.toml`, `uv.lock`, `pylock.toml`, conda's `environment.yml`, and
scripts with inline metadata (PEP 723).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopyard.client.local_requirements import archive_lines, linked_archives, parse_local
from hopyard.client.lock_markers import choose_marker, plain_name
from hopyard.client.python_version import choose_version
from hopyard.client.requirement_check import check_requirements
from hopyard.client.requirements import RequirementLine, decode_text, flatten_requirements, read_requirements
from hopyard.config.requirements_path import RequirementsPath, parse_requirements_path
from hopyard.errors import SpecError

_PYTHON_OF_CONDA = re.compile(r"python\s*(?:=|==|>=)?\s*([0-9]+(?:\.[0-9]+){0,2})?(?:[.*=].*)?")
_CONDA_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_EXPORT_TIMEOUT_S = 120.0
_PUBLIC_INDEX = "//pypi.org/simple"  # or its mirror on the node


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    """What a file requires.

    requirements: the text of a requirements file without includes. python: a version, "" for any.
    requires_python: the range that the file allows. sources: folders of projects, relative to the code, that
    are imported from it, by the names of the projects. files: archives of the code that are installed.
    """

    requirements: str
    python: str = ""
    requires_python: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def read_environment_file(
    file: Path, root: Path, variables: Mapping[str, str], *, secrets: Collection[str] = ()
) -> EnvironmentFile:
    """Reads the file of `--requirements`.

    root: the code of the run. variables: for `${NAME}` in a requirements file. secrets: names of further
    variables, which the run has. Raises SpecError for a file
    that cannot be read, and for parts that cannot be installed by pip's rules.
    """
    path = parse_requirements_path(file)
    file = Path(os.path.normpath(Path.cwd() / path.file))
    if file.name == "pyproject.toml":
        return _read_project(file, root, path.extras, path.groups)
    if file.name == "uv.lock":
        return EnvironmentFile(_export_lock(file, path), sources=_project_sources(file.parent, root))
    if re.fullmatch(r"pylock(\..*)?\.toml", file.name):
        return _read_pylock(file, path)
    if path.extras or path.groups:
        raise SpecError(
            f"{file.name} has no extras or dependency groups",
            hints=("a pyproject.toml and lock files have them: `--requirements pyproject.toml[plot]:dev`",),
        )
    if file.suffix in (".yml", ".yaml"):
        return _read_conda(file)
    lines = read_requirements(file, variables)
    check_requirements(lines, {*variables, *secrets})
    return _resolve_projects(lines, root)


def read_script_metadata(script: Path) -> EnvironmentFile | None:
    """Returns what the inline metadata of a script requires (PEP 723); None for a script without it."""
    try:
        return parse_script_metadata(script.read_bytes(), script.name)
    except OSError:
        return None


def parse_script_metadata(source: bytes, name: str) -> EnvironmentFile | None:
    """Returns what the inline metadata in the text of a script requires; None without it."""
    if b"# /// script" not in source:
        return None
    text = _script_block(source.decode("utf-8-sig", errors="replace"))
    if text is None:
        return None
    metadata = _parse_toml(text, f"{name}: inline metadata")
    requires = metadata.get("requires-python", "")
    lines = [*_index_lines(metadata), *_with_sources(metadata, name)]
    python = choose_version(requires, name=name) if requires else ""
    return EnvironmentFile("".join(f"{line}\n" for line in lines), python, requires)


def _script_block(source: str) -> str | None:
    """Returns the text of the block `# /// script`, None without a complete one."""
    lines = [line.rstrip() for line in source.splitlines()]
    if "# /// script" not in lines:
        return None
    block: list[str] = []
    for line in lines[lines.index("# /// script") + 1 :]:
        if line != "#" and not line.startswith("# "):
            break
        block.append(line)
    # the specification: the last end line of the block counts
    ends = [index for index, line in enumerate(block) if line == "# ///"]
    return "\n".join(line[2:] for line in block[: ends[-1]]) if ends else None


def project_requires_python(folder: Path) -> str:
    """Returns `requires-python` of the project in a folder, "" without one."""
    try:
        project = tomllib.loads(_read_text(folder / "pyproject.toml")).get("project", {})
        return str(project.get("requires-python", ""))
    except (OSError, ValueError, AttributeError, SpecError):
        return ""


def _resolve_projects(lines: list[RequirementLine], root: Path) -> EnvironmentFile:
    """Replaces local projects (`-e .`) by their dependencies; the run imports the projects from its code."""
    kept: list[RequirementLine] = []
    added, sources, files = list[str](), dict[str, str](), list[str]()
    requires = ""
    for line in lines:
        local = parse_local(line)
        if local is None:
            kept.append(line)
            files += linked_archives(line, root)
            continue
        if not (root / local.path).is_dir():
            text, file = archive_lines(line, local, root)
            added.append(text)
            files.append(file)
            continue
        project = _read_project(root / local.path / "pyproject.toml", root, local.extras)
        if not project.sources:
            raise SpecError(
                f"{line.file}: line {line.number}: {local.path} is outside the code, so the run could not "
                "import it",
                hints=("start the run in a folder that holds both, or name a wheel or an address of it",),
            )
        added.append(project.requirements)
        sources |= project.sources
        requires = requires or project.requires_python
    python = choose_version(requires, name="pyproject.toml") if requires else ""
    text = flatten_requirements(kept, root) + "".join(added)
    return EnvironmentFile(text, python, requires, sources, tuple(files))


def _read_project(
    file: Path, root: Path, extras: tuple[str, ...], groups: tuple[str, ...] = ()
) -> EnvironmentFile:
    hint = "list its dependencies in a requirements file"
    try:
        content = _parse_toml(decode_text(file.read_bytes(), str(file)), str(file))
    except OSError as error:
        raise SpecError(
            f"{file} cannot be read: {error.strerror}", hints=("a local project needs a pyproject.toml", hint)
        ) from error
    project = content.get("project")
    if project is None and groups and not extras:
        project = {}  # a file may hold nothing but groups
    if not isinstance(project, dict):
        raise SpecError(f"{file} has no table [project]", hints=(hint,))
    if "dependencies" in project.get("dynamic", ()):
        raise SpecError(f"{file}: the dependencies are dynamic: its build tool computes them", hints=(hint,))
    optional = project.get("optional-dependencies", {})
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SpecError(
            f"{file} has no extra `{unknown[0]}`",
            hints=(f"its extras: {', '.join(sorted(optional)) or 'none'}",),
        )
    lines = [*_index_lines(content), *_with_sources({**content, **project}, str(file))]
    lines += [line for extra in extras for line in optional[extra]]
    lines += [line for group in groups for line in _group_lines(content, group, str(file))]
    requires = str(project.get("requires-python", ""))
    return EnvironmentFile(
        "".join(f"{line}\n" for line in lines),
        choose_version(requires, name=str(file)) if requires else "",
        requires,
        _project_sources(file.parent, root),
    )


def _group_lines(
    content: Mapping[str, Any], group: str, name: str, outer: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yields the requirements of a dependency group, and of the groups that it includes (PEP 735)."""
    groups = {plain_name(key): lines for key, lines in content.get("dependency-groups", {}).items()}
    plain = plain_name(group)
    if plain not in groups:
        raise SpecError(
            f"{name} has no dependency group `{group}`",
            hints=(f"its groups: {', '.join(sorted(groups)) or 'none'}",),
        )
    if plain in outer:
        raise SpecError(f"{name}: the dependency group `{group}` includes itself", hints=("remove one line",))
    for line in groups[plain]:
        if isinstance(line, dict):
            yield from _group_lines(content, str(line.get("include-group", "")), name, (*outer, plain))
        else:
            yield str(line)


def _project_sources(folder: Path, root: Path) -> dict[str, str]:
    """Returns the project of a folder as a source, if the folder belongs to the code."""
    place, top = folder.resolve(), root.resolve()
    if not place.is_relative_to(top):
        return {}
    try:
        name = str(tomllib.loads(_read_text(place / "pyproject.toml"))["project"]["name"])
    except (OSError, ValueError, KeyError, TypeError, SpecError):
        name = place.name
    return {name: os.path.relpath(place, top)}


def _index_lines(content: Mapping[str, Any]) -> Iterator[str]:
    """Yields the package indexes of `[tool.uv]`."""
    for index in content.get("tool", {}).get("uv", {}).get("index", ()):
        yield f"{'--index-url' if index.get('default') else '--extra-index-url'} {index.get('url', '')}"


def _with_sources(content: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yields the dependencies, with the sources that `[tool.uv.sources]` gives some of them."""
    sources = content.get("tool", {}).get("uv", {}).get("sources", {})
    for dependency in content.get("dependencies", ()):
        package = re.split(r"[\s\[<>=!~;@(]", dependency, maxsplit=1)[0]
        source = sources.get(package)
        if not isinstance(source, dict) or "index" in source:
            yield dependency
        elif "git" in source:
            revision = source.get("rev") or source.get("tag") or source.get("branch")
            yield f"{package} @ git+{source['git']}" + (f"@{revision}" if revision else "")
        elif "url" in source:
            yield f"{package} @ {source['url']}"
        else:
            raise SpecError(
                f"{name}: the source of `{package}` is a local one",
                hints=("write a path or an address of it into a requirements file",),
            )


def _export_lock(file: Path, path: RequirementsPath) -> str:
    """Returns the requirements of a `uv.lock`, with hashes."""
    import subprocess

    import uv  # late: only runs with a uv.lock need it

    command = [uv.find_uv_bin(), "export", "--frozen", "--offline", "--no-emit-project", "--no-header"]
    command += [
        "--no-annotate",
        "--no-default-groups",
        "--format",
        "requirements-txt",
        "--directory",
        str(file.parent),
    ]
    command += [word for extra in path.extras for word in ("--extra", extra)]
    command += [word for group in path.groups for word in ("--group", group)]
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, timeout=_EXPORT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"{file} cannot be exported: {error}") from error
    if result.returncode:
        reason = result.stderr.decode(errors="replace").strip().removeprefix("error: ")
        raise SpecError(f"{file} cannot be exported: {reason}", hints=("run `uv lock` in its folder",))
    return result.stdout.decode()


def _read_pylock(file: Path, path: RequirementsPath) -> EnvironmentFile:
    content = _parse_toml(decode_text(file.read_bytes(), str(file)), str(file))
    groups = (*content.get("default-groups", ()), *path.groups)
    _check_declared(file, "extra", path.extras, content.get("extras", ()))
    _check_declared(file, "dependency group", path.groups, content.get("dependency-groups", ()))
    indexes = {str(package["index"]) for package in content.get("packages", ()) if "index" in package}
    lines = [f"--extra-index-url {index}" for index in sorted(indexes) if _PUBLIC_INDEX not in index]
    for package in content.get("packages", ()):
        name, version = package.get("name"), package.get("version")
        marker: str | None = package.get("marker", "")
        if marker:
            marker = choose_marker(marker, path.extras, groups, name=f"{file}: {name}")
        if marker is None:
            continue
        if not name or not version or "vcs" in package or "directory" in package:
            raise SpecError(
                f"{file}: {name or 'a package'} has no version in an index",
                hints=("export a requirements file: `uv export --format requirements-txt`",),
            )
        archives = [*package.get("wheels", ()), *filter(None, [package.get("sdist"), package.get("archive")])]
        digests = [archive["hashes"].get("sha256") for archive in archives]
        hashes = [f"--hash=sha256:{digest}" for digest in digests if digest]
        condition = f" ; {marker}" if marker else ""
        lines.append(" ".join((f"{name}=={version}{condition}", *hashes)))
    requires = str(content.get("requires-python", ""))
    python = choose_version(requires, name=str(file)) if requires else ""
    return EnvironmentFile("".join(f"{line}\n" for line in lines), python, requires)


def _check_declared(file: Path, kind: str, names: Sequence[str], declared: Sequence[str]) -> None:
    known = set(map(plain_name, declared))
    unknown = [name for name in names if plain_name(name) not in known]
    if unknown:
        raise SpecError(
            f"{file} has no {kind} `{unknown[0]}`",
            hints=(f"its {kind}s: {', '.join(sorted(declared)) or 'none'}",),
        )


def _read_conda(file: Path) -> EnvironmentFile:
    import yaml

    try:
        content = yaml.load(decode_text(file.read_bytes(), str(file)), yaml.BaseLoader)
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"{file} cannot be read: {error}") from error
    dependencies = content.get("dependencies") if isinstance(content, dict) else None
    if not isinstance(dependencies, list):
        raise SpecError(f"{file} has no list `dependencies`", hints=("give a requirements file",))
    python, lines, others = "", list[str](), list[str]()
    for entry in dependencies:
        if isinstance(entry, dict):
            lines += entry.get("pip") or []
        elif (found := _PYTHON_OF_CONDA.fullmatch(str(entry))) is not None:
            python = found.group(1) or ""
        elif re.split(r"[\s=<>]", str(entry))[0] not in _CONDA_TOOLS:
            others.append(str(entry))
    if others:
        raise SpecError(
            f"{file}: only conda installs {', '.join(others[:5])}{' …' if len(others) > 5 else ''}",
            hints=(
                "activate the environment, and leave out --requirements: a run uses the active environment",
                "or name the packages of PyPI below `pip:`",
            ),
        )
    return EnvironmentFile("".join(f"{line}\n" for line in lines), python)


def _read_text(file: Path) -> str:
    return decode_text(file.read_bytes(), str(file))


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name} is not TOML: {error}") from error
