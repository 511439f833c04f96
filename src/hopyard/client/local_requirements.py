"""Requirements with a path: archives (`./dist/x.whl`, `x @ file:///…`) and projects (`-e ./lib`)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hopyard.client.requirements import RequirementLine
from hopyard.errors import SpecError

# begins a comment with the digest of an archive of the code: other bytes make another environment
ARCHIVE_MARK = "#:archive "
_TAIL = r"\s*(?:\[(?P<extras>[^\]]*)\])?\s*"
_NAMED = re.compile(rf"[A-Za-z0-9][\w.-]*{_TAIL}@\s*(?P<url>[^\s;]+)\s*(?P<marker>;.*)?")
_PATH = re.compile(rf"(?P<url>[^\s;\[@]+){_TAIL}(?P<marker>;.*)?")
_ARCHIVES = (".whl", ".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")
_FIND_LINKS = re.compile(r"(?:--find-links|-f)[ =](\S.*)")
_ADDRESS = re.compile(r"\A[A-Za-z+]{2,}:.")


@dataclass(frozen=True, slots=True)
class LocalRequirement:
    """path: as the line has it, relative to the code. extras: names. marker: with its semicolon, or ""."""

    path: str
    extras: tuple[str, ...]
    marker: str


def parse_local(line: RequirementLine) -> LocalRequirement | None:
    """Returns the path that a line installs, None for a line without one."""
    text = (line.values.editable[0] if line.values.editable else line.requirement).strip()
    found = _NAMED.fullmatch(text) or _PATH.fullmatch(text)
    if found is None or line.is_constraint:
        return None
    url = found["url"]
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
    elif _ADDRESS.search(url):
        return None
    else:
        path = url.partition("#")[0]
        is_path = path.startswith(".") or os.sep in path or path.lower().endswith(_ARCHIVES)
        if not (is_path or line.values.editable or "@" in text[: found.start("url")]):
            return None
    extras = tuple(part.strip() for part in (found["extras"] or "").split(",") if part.strip())
    return LocalRequirement(path, extras, (found["marker"] or "").strip())


def archive_lines(line: RequirementLine, local: LocalRequirement, root: Path) -> tuple[str, str]:
    """Returns the lines of an archive of the code, and its path in the code.

    root: the code. Raises SpecError for a path that is absent, or outside of the code.
    """
    place = root / local.path
    if not place.is_file():
        raise SpecError(
            f"{line.file}: line {line.number}: there is no file or folder {local.path}",
            hints=("a path counts from the folder of the code",),
        )
    top, real = root.resolve(), place.resolve()
    if not real.is_relative_to(top):
        raise SpecError(
            f"{line.file}: line {line.number}: {local.path} is outside the code, so no run could install it",
            hints=(
                "copy it into the folder of the code",
                "or put it into a folder, and name that: --find-links",
            ),
        )
    path = os.path.relpath(real, top)
    extras = f"[{','.join(local.extras)}]" if local.extras else ""
    with real.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    words = [f"./{path}{extras}", local.marker, line.options if not line.values.editable else ""]
    return f"{ARCHIVE_MARK}{digest} {path}\n{' '.join(filter(None, words))}\n", path


def linked_archives(line: RequirementLine, root: Path) -> Iterator[str]:
    """Yields the archives of a `--find-links` folder of the code, as paths in it."""
    for link in line.values.find_links or ():
        if _ADDRESS.search(link) and not link.startswith("file:"):
            continue
        path = unquote(urlsplit(link).path) if link.startswith("file:") else link
        beside = line.file.parent / path
        yield from _archives_in(beside if beside.exists() else Path(path), root)


def recorded_archives(text: str, root: Path) -> set[str]:
    """Returns the archives that recorded requirements install from the code in `root`, as paths in it.

    text: of a run of any user, so only the names of archives count.
    """
    found: set[str] = set()
    for line in text.splitlines():
        if line.startswith(ARCHIVE_MARK):
            found.add(line.removeprefix(ARCHIVE_MARK).partition(" ")[2])
        elif (link := _FIND_LINKS.fullmatch(line)) is not None:
            found.update(_archives_in(root / link[1], root))
    return {path for path in found if path.lower().endswith(_ARCHIVES) and (root / path).is_file()}


def _archives_in(folder: Path, root: Path) -> Iterator[str]:
    top, place = root.resolve(), folder.resolve()
    if place.is_dir() and place.is_relative_to(top):
        for file in sorted(place.iterdir()):
            if file.name.endswith(_ARCHIVES):
                yield os.path.relpath(file, top)
