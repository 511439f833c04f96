"""PostgreSQL's own programs: `pg_dump` and `pg_restore`.
The password goes through the environment, never through arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from hopyard.errors import NotFound, ServerUnavailable

_INSTALL_HINT = (
    "install PostgreSQL's client programs (Debian: postgresql-client), of the server's version or newer"
)


def dump_database(url: str, file: Path) -> None:
    """The whole database, of one moment, but for the servers that share it: a restored copy is not to talk to
    them. Raises NotFound without `pg_dump`, ServerUnavailable when it fails."""
    _run_program(
        "pg_dump",
        url,
        ["--format=custom", "--no-owner", "--exclude-table-data=*.servers", f"--file={file}"],
        before_url=["--dbname"],
    )


def restore_database(url: str, file: Path) -> None:
    """Into an empty database, all or nothing."""
    options = ["--no-owner", "--exit-on-error", "--single-transaction"]
    _run_program("pg_restore", url, options, before_url=["--dbname"], after=[str(file)])


def _run_program(
    program: str, url: str, options: Sequence[str], *, before_url: Sequence[str], after: Sequence[str] = ()
) -> None:
    found = shutil.which(program)
    if found is None:
        raise NotFound(f"{program} is not installed", hints=(_INSTALL_HINT,))
    plain, password = split_password(url)
    environment = os.environ | ({"PGPASSWORD": password} if password is not None else {})
    command = [found, *options, *before_url, plain, *after]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        hint = _INSTALL_HINT if "version mismatch" in done.stderr else "\n".join(said[-5:])
        raise ServerUnavailable(f"{program} failed: {said[0]}", hints=(hint,))


def split_password(url: str) -> tuple[str, str | None]:
    """The address without its password, and the password."""
    parts = urlsplit(url.replace("postgresql+psycopg://", "postgresql://", 1))
    if parts.password is None:
        return urlunsplit(parts), None
    credentials, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials.partition(':')[0]}@{place}")), unquote(
        parts.password
    )
