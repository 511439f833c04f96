"""Reads a requirements file by pip's rules into one text without includes and variables.

The text is all that was read, so its digest identifies the environment.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from optparse import OptionParser, Values
from pathlib import Path
from typing import NoReturn

from hopyard.errors import SpecError

# begins a line with a constraint; `replica.requirement_text` reads it
CONSTRAINT_MARK = "#:constraint "
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32, "utf-32"),
    (codecs.BOM_UTF16, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
)
_CODING = re.compile(rb"coding[:=]\s*([-\w.]+)")
_COMMENT = re.compile(r"(^|\s+)#.*\Z")
_VARIABLE = re.compile(r"(\$\{([A-Z0-9_]+)\})")
_SCHEME = re.compile(r"^(http|https|file):", re.IGNORECASE)
_MAX_DEPTH = 50
_VALUE_OPTIONS = (
    ("-r", "--requirement"),
    ("-c", "--constraint"),
    ("-e", "--editable"),
    ("-f", "--find-links"),
    ("-i", "--index-url", "--pypi-url"),
    ("--extra-index-url",),
    ("--no-binary",),
    ("--only-binary",),
    ("--trusted-host",),
    ("--use-feature",),
    ("--hash",),
    ("--global-option",),
    ("-C", "--config-settings"),
)
_FLAGS = (("--no-index",), ("--pre",), ("--prefer-binary",), ("--require-hashes",))


@dataclass(frozen=True, slots=True)
class RequirementLine:
    """One line after its continuation and its variables.

    file, number: where it begins. requirement: "" for a line of options. options: the text of its options.
    """

    file: Path
    number: int
    requirement: str
    options: str
    values: Values
    is_constraint: bool


def read_requirements(file: Path, variables: Mapping[str, str]) -> list[RequirementLine]:
    """Returns the lines of a requirements file and of all files that it includes, in pip's order.

    variables: for `${NAME}`; a name without a value stays as it is. Raises SpecError with file and line.
    """
    return list(_read_lines(file, variables, is_constraint=False, outer=()))


def flatten_requirements(lines: list[RequirementLine], root: Path) -> str:
    """Returns the lines as the text of one file. Local folders are relative to `root`, the packed folder, if
    they are inside."""
    texts: list[str] = []
    for line in lines:
        if line.requirement:
            text = f"{line.requirement} {line.options}".rstrip()
        elif line.values.find_links:
            text = f"--find-links {_link_text(line.values.find_links[0], line.file, root)}"
        else:
            text = line.options
        texts.append((CONSTRAINT_MARK if line.is_constraint and line.requirement else "") + text)
    return "".join(f"{text}\n" for text in texts)


def decode_text(data: bytes, name: str) -> str:
    """Returns the text of a file as pip decodes it. Raises SpecError for bytes of another encoding."""
    encoding = "utf-8"
    for mark, encoding_of_mark in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            data, encoding = data[len(mark) :], encoding_of_mark
            break
    else:
        for line in data.split(b"\n")[:2]:
            found = _CODING.search(line) if line.startswith(b"#") else None
            if found:
                encoding = found.group(1).decode("ascii")
                break
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        offset = error.start if isinstance(error, UnicodeDecodeError) else 0
        number = data.count(b"\n", 0, offset) + 1
        raise SpecError(
            f"{name}: line {number} is not {encoding}",
            hints=("save the file as UTF-8, or name its encoding in line 1: # coding: latin-1",),
        ) from None


def _read_lines(
    file: Path, variables: Mapping[str, str], *, is_constraint: bool, outer: tuple[Path, ...]
) -> Iterator[RequirementLine]:
    if file in outer or len(outer) > _MAX_DEPTH:
        raise SpecError(f"{outer[-1]} includes {file}, which includes it", hints=("remove one of the lines",))
    try:
        text = decode_text(file.read_bytes(), str(file))
    except OSError as error:
        by = f", which {outer[-1]} includes," if outer else ""
        raise SpecError(f"--requirements: {file}{by} cannot be read: {error.strerror}") from error
    for number, line in _joined_lines(text):
        content = _COMMENT.sub("", line).strip()
        if not content:
            continue
        for placeholder, name in _VARIABLE.findall(content):
            content = content.replace(placeholder, variables.get(name) or placeholder)
        requirement, options, values = _parse_line(content, file, number)
        included = None if requirement or values.editable else (values.requirement or values.constraint)
        if included is None:
            yield RequirementLine(file, number, requirement, options, values, is_constraint)
            continue
        path = included[0]
        if _SCHEME.search(path):
            raise SpecError(
                f"{file}: line {number} includes {path}",
                hints=("download the file, and include it by its path",),
            )
        nested = Path(os.path.normpath(file.parent / path))
        # pip: a file that a constraints file includes holds constraints only if that line says so
        yield from _read_lines(nested, variables, is_constraint=not values.requirement, outer=(*outer, file))


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines with the numbers of their beginnings. A backslash at the end continues a line, also in
    front of a comment."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            start = start if parts else number
            parts.append(line.strip("\\"))
            continue
        parts.append(f" {line}" if is_comment else line)
        yield (start if len(parts) > 1 else number), "".join(parts)
        parts = []
    if parts:
        yield start, "".join(parts)


class _LineParser(OptionParser):
    def error(self, msg: str) -> NoReturn:
        raise ValueError(msg)


def _parse_line(content: str, file: Path, number: int) -> tuple[str, str, Values]:
    """Returns the requirement, the text of the options, and the options. Only options are split as a shell
    does: markers of requirements hold quotes."""
    words = content.split(" ")
    start = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    options = " ".join(words[start:])
    parser = _LineParser(add_help_option=False)
    for names in _VALUE_OPTIONS:
        long_name = next(name for name in names if name.startswith("--"))
        parser.add_option(*names, action="append", dest=long_name[2:].replace("-", "_"))
    for names in _FLAGS:
        parser.add_option(*names, action="store_true", dest=names[0][2:].replace("-", "_"))
    try:
        values, _ = parser.parse_args(shlex.split(options))
    except ValueError as error:
        raise SpecError(f"{file}: line {number} is not a requirement: {error}") from None
    return " ".join(words[:start]), options, values


def _link_text(link: str, file: Path, root: Path) -> str:
    """Returns a folder of packages as the replica finds it. By pip's rule it counts from the folder of the
    file, else from the current folder."""
    if "://" in link or link.startswith("file:"):
        return link
    beside = (file.parent / link).resolve()
    path = beside if beside.exists() else Path(link).resolve()
    top = root.resolve()
    return os.path.relpath(path, top) if path.is_relative_to(top) else str(path)
