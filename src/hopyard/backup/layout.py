"""What a backup holds. It is a folder, laid out as a home, with `backup.json` written last: without it, it is
not whole.

The database comes first, then what it refers to. Packs, large blobs and streams are only ever added to or
replaced whole, so what is copied later has all that the database names, and a later backup into the same
folder copies only what is new. What a backup there was made of goes when the new one is whole, so one that is
broken off leaves the one before as it was. What the database refers to never goes, and a good copy of a blob
is not replaced: the home may have lost or damaged it meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hopyard.errors import IntegrityError, NotFound

FORMAT = 1
MARK_FILE = "backup.json"
DATABASE, DUMP = Path("hopyard.db"), Path("database.dump")  # SQLite's file; what pg_dump wrote
BLOB_INDEX = Path("blobs") / "index.db"
PACKS, LARGE_BLOBS, STREAMS = Path("blobs") / "packs", Path("blobs") / "large", Path("streams")
FOLDERS = (PACKS, LARGE_BLOBS, STREAMS, Path("offline"), Path("kept"))
_SCRIPT_FOLDERS = (Path("offline"), Path("kept"))  # which hold files that scripts made, by whatever name
# Of a running server, or made again when they are missing.
_EXCLUDED_FILES = {"server.json", str(DATABASE), "hopyard.db-wal", "hopyard.db-shm", MARK_FILE, str(DUMP)}
_EXCLUDED_SUFFIXES = (".lock", ".sock", ".log")


@dataclass(frozen=True, slots=True)
class BackupMark:
    """created_at: RFC 3339, when the database was copied. home: where it came from.
    database: `sqlite` or `postgresql`. database_id: "" where the database has none."""

    created_at: str
    home: str
    version: str
    database: str
    files: int
    size_bytes: int
    format: int = FORMAT
    database_id: str = ""

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def read_mark(folder: Path) -> BackupMark:
    """Raises NotFound where there is no whole backup, IntegrityError where it is of a newer Hopyard or
    damaged."""
    try:
        found: Mapping[str, Any] = json.loads((folder / MARK_FILE).read_bytes())
        if found["format"] > FORMAT:
            raise IntegrityError(
                f"{folder} was written by a newer Hopyard ({found['version']})",
                hints=("upgrade Hopyard first",),
            )
        return BackupMark(**found)
    except FileNotFoundError:
        hint = "run `hop backup` again: an interrupted backup has no such file either"
        raise NotFound(f"{folder} is not a backup: it has no {MARK_FILE}", hints=(hint,)) from None
    except (ValueError, KeyError, TypeError) as bad:
        raise IntegrityError(
            f"{folder / MARK_FILE} is damaged: {bad}", hints=("restore another backup",)
        ) from bad


def database_id_of(mark: BackupMark, folder: Path) -> str:
    """Which database the backup is of; "" where that is not known."""
    try:
        return mark.database_id or (folder / "database-id").read_text().strip()
    except FileNotFoundError:
        return ""


def top_level_files(home: Path) -> Iterator[Path]:
    """The files at the top of a home that a backup copies: settings, tokens, secrets.
    Relative to the home."""
    for path in sorted(home.iterdir()):
        left_out = (
            path.name in _EXCLUDED_FILES
            or path.name.endswith(_EXCLUDED_SUFFIXES)
            or path.name.startswith(".")
        )
        if not left_out and path.is_file() and not path.is_symlink():
            yield Path(path.name)


def files_below(root: Path, folder: Path) -> Iterator[Path]:
    """Plain files below `root / folder`, relative to `root`, and links that scripts made; Hopyard's own files
    that are being written, or only take space, are left out."""
    top = root / folder
    if not top.is_dir():
        return
    for path in sorted(top.rglob("*")):
        of_script = folder in _SCRIPT_FOLDERS
        own = not of_script and any(part.startswith(".") for part in path.relative_to(top).parts)
        if not own and (of_script if path.is_symlink() else path.is_file()):
            yield path.relative_to(root)
