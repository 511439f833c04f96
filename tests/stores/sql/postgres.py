"""A real PostgreSQL of our own: started for a test session, reached by a unix socket, ended by its process
id."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

START_TIMEOUT_S = 60


def server_programs() -> Path | None:
    """Returns the folder of `initdb` and `postgres`, or None if they are not installed."""
    result = shutil.which("initdb")
    if result is not None:
        return Path(result).resolve().parent
    candidates = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    return candidates[-1].parent if candidates else None


def account() -> dict[str, int]:
    """Returns the user of the server process: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    entry = pwd.getpwnam("postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid}


class PostgreSQL:
    """A running database cluster. A new database is a schema, which is created in a millisecond."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def new_database(self) -> str:
        """Returns the URL of a new database without tables."""
        name = f"t{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{_url(self._folder)}&options=-csearch_path%3D{name}"

    def url_of(self, database: str) -> str:
        """Returns the URL of a complete database of this cluster."""
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(_url(self._folder), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _url(folder: Path) -> str:
    return f"postgresql://postgres@/postgres?host={folder}"


@contextmanager
def running_postgres() -> Iterator[PostgreSQL]:
    programs = server_programs()
    assert programs is not None
    run_as = account()
    # not below pytest's folders, which only root may enter
    folder = Path(tempfile.mkdtemp(prefix="hopyard-pg-"))
    try:
        if run_as:
            os.chown(folder, run_as["user"], run_as["group"])
        data = folder / "data"
        options = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]
        subprocess.run(
            [programs / "initdb", "-D", data, *options], check=True, capture_output=True, cwd="/", **run_as
        )
        settings = (
            "listen_addresses=",
            f"unix_socket_directories={folder}",
            "fsync=off",
            "max_connections=100",
        )
        flags = [part for setting in settings for part in ("-c", setting)]
        log = (folder / "log").open("wb")
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *flags], stdout=log, stderr=log, cwd="/", **run_as
        )
        try:
            _wait_until_ready(folder, server)
            yield PostgreSQL(folder)
        finally:
            server.send_signal(signal.SIGQUIT)  # its immediate shutdown: nothing here is worth a checkpoint
            server.wait(timeout=START_TIMEOUT_S)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(_url(folder)).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text()) from None
            time.sleep(0.02)
