"""Runs PostgreSQL's `pg_dump` and `pg_restore`. Passwords are passed in the environment, never in
arguments."""

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
    """Dumps the database as of one moment, without the table of servers: a restored copy must not contact
    them. Raises NotFound without `pg_dump`, and ServerUnavailable if it fails."""
    _run_program(
        "pg_dump",
        url,
        ["--format=custom", "--no-owner", "--exclude-table-data=*.servers", f"--file={file}"],
        before_url=["--dbname"],
    )


def restore_database(url: str, file: Path) -> None:
    """Restores a dump into an empty database, all or nothing."""
    options = ["--no-owner", "--exit-on-error", "--single-transaction"]
    _run_program("pg_restore", url, options, before_url=["--dbname"], after=[str(file)])


def _run_program(
    program: str, url: str, options: Sequence[str], *, before_url: Sequence[str], after: Sequence[str] = ()
) -> None:
    executable = shutil.which(program)
    if executable is None:
        raise NotFound(f"{program} is not installed", hints=(_INSTALL_HINT,))
    address, password = split_password(url)
    environment = os.environ | ({"PGPASSWORD": password} if password is not None else {})
    command = [executable, *options, *before_url, address, *after]
    result = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if result.returncode:
        messages = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        hint = _INSTALL_HINT if "version mismatch" in result.stderr else "\n".join(messages[-5:])
        raise ServerUnavailable(f"{program} failed: {messages[0]}", hints=(hint,))


def split_password(url: str) -> tuple[str, str | None]:
    """Returns the address without its password, and the password."""
    parts = urlsplit(url.replace("postgresql+psycopg://", "postgresql://", 1))
    if parts.password is None:
        return urlunsplit(parts), None
    credentials, _, location = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials.partition(':')[0]}@{location}")), unquote(
        parts.password
    )
