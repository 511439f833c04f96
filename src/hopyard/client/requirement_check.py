"""Refuses lines of requirements that could not be installed, with file and line, before a submission."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from hopyard.client.local_requirements import parse_local
from hopyard.client.requirements import RequirementLine
from hopyard.errors import SpecError

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_HASH_OF_ADDRESS = re.compile(r"#(?:.*&)?(?:md5|sha\d+)=")
_MAX_SHOWN = 80
# options of pip that set how a package is built; uv has no such options in a file
_BUILD_OPTIONS = (("config_settings", "--config-settings"), ("global_option", "--global-option"))


def check_requirements(lines: Sequence[RequirementLine], variables: Collection[str]) -> None:
    """Raises SpecError, with file and line, for a build option, a variable that is not set, and a package
    without a hash where others have one.

    variables: the names that are set. In an address, a variable may be one of the node.
    """
    for line in lines:
        for dest, option in _BUILD_OPTIONS:
            if getattr(line.values, dest):
                raise SpecError(
                    f"{_place(line)}: `{option}` is an option of pip that an environment of Hopyard cannot "
                    "have",
                    hints=(
                        "remove it from the line",
                        "or build a wheel with it, and name the wheel: `./dist/NAME-1.0-py3-none-any.whl`",
                    ),
                )
        for name in _VARIABLE.findall(line.requirement):
            if "://" not in line.requirement and name not in variables:
                raise SpecError(
                    f"{_place(line)}: the variable {name} is not set", hints=(f"set it: `-e {name}=…`",)
                )
    _check_hashes(lines)


def _check_hashes(lines: Sequence[RequirementLine]) -> None:
    """By pip's rule, `--require-hashes` and each hash of a package make hashes mandatory for all."""
    first = next((line for line in lines if _requires_hashes(line)), None)
    if first is None:
        return
    for line in lines:
        text = line.requirement or (line.values.editable or [""])[0]
        if not text or line.is_constraint or line.values.hash or _HASH_OF_ADDRESS.search(text):
            continue
        if parse_local(line) is None:
            cause = "`--require-hashes`" if first.values.require_hashes else "a hash"
            raise SpecError(
                f"{_place(line)}: `{text[:_MAX_SHOWN]}` has no `--hash`, and {cause} in line "
                f"{first.number} of {first.file.name} makes hashes mandatory for all packages",
                hints=(
                    "write the file with the hashes of all packages: `uv pip compile --generate-hashes`",
                    "or remove the hashes" if cause == "a hash" else "or remove `--require-hashes`",
                ),
            )


def _requires_hashes(line: RequirementLine) -> bool:
    is_package = bool(line.requirement) and not line.is_constraint
    return bool(line.values.require_hashes or (is_package and line.values.hash))


def _place(line: RequirementLine) -> str:
    return f"{line.file}: line {line.number}"
