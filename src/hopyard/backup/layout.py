"""The layout of a backup: a folder laid out as a home. A backup without `backup.json` is incomplete.

The database is copied first, then the files that it refers to. Packs, large blobs and streams are only added
or replaced as a whole. So later copies hold all that the database names, and a later backup into the same
folder copies only new files. Files of the earlier backup are removed once the new one is complete. So an
interrupted backup leaves the earlier one intact. Files that the database refers to are never removed. An
intact copy of a blob is never replaced: the home may have lost or damaged it in the meantime.
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
_SCRIPT_FOLDERS = (Path("offline"), Path("kept"))  # hold files made by scripts, with arbitrary names
# Files of a running server, and files that are rebuilt if they are missing.
_EXCLUDED_FILES = {"server.json", str(DATABASE), "hopyard.db-wal", "hopyard.db-shm", MARK_FILE, str(DUMP)}
_EXCLUDED_SUFFIXES = (".lock", ".sock", ".log")


@dataclass(frozen=True, slots=True)
class BackupMark:
    """The content of `backup.json`.

    created_at: RFC 3339, when the database was copied. home: the path of the original home. database:
    `sqlite` or `postgresql`. database_id: "" if the database has none.
    """

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
    """Reads the mark of a backup. Raises NotFound if there is no complete backup, and IntegrityError if a
    newer Hopyard wrote it or it is damaged."""
    try:
        fields: Mapping[str, Any] = json.loads((folder / MARK_FILE).read_bytes())
        if fields["format"] > FORMAT:
            raise IntegrityError(
                f"{folder} was written by a newer Hopyard ({fields['version']})",
                hints=("upgrade Hopyard first",),
            )
        return BackupMark(**fields)
    except FileNotFoundError:
        hint = "run `hop backup` again: an interrupted backup has no such file either"
        raise NotFound(f"{folder} is not a backup: it has no {MARK_FILE}", hints=(hint,)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{folder / MARK_FILE} is damaged: {error}", hints=("restore another backup",)
        ) from error


def database_id_of(mark: BackupMark, folder: Path) -> str:
    """Returns the ID of the backed-up database, or "" if it is unknown."""
    try:
        return mark.database_id or (folder / "database-id").read_text().strip()
    except FileNotFoundError:
        return ""


def top_level_files(home: Path) -> Iterator[Path]:
    """Yields the files at the top of a home that a backup copies, relative to the home: settings, tokens,
    secrets."""
    for path in sorted(home.iterdir()):
        is_excluded = (
            path.name in _EXCLUDED_FILES
            or path.name.endswith(_EXCLUDED_SUFFIXES)
            or path.name.startswith(".")
        )
        if not is_excluded and path.is_file() and not path.is_symlink():
            yield Path(path.name)


def files_below(root: Path, folder: Path) -> Iterator[Path]:
    """Yields the plain files below `root / folder`, relative to `root`, and links made by scripts. Skips
    Hopyard's files that are incomplete or only reserve space."""
    top = root / folder
    if not top.is_dir():
        return
    for path in sorted(top.rglob("*")):
        of_script = folder in _SCRIPT_FOLDERS
        is_internal = not of_script and any(part.startswith(".") for part in path.relative_to(top).parts)
        if not is_internal and (of_script if path.is_symlink() else path.is_file()):
            yield path.relative_to(root)
