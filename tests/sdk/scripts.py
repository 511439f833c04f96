"""Runs small user scripts as real processes, and reads their recorded data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hopyard.domain.metric_records import Point, read_records
from hopyard.private_files import write_atomically

CLEAN = {
    k: v
    for k, v in os.environ.items()
    if not k.startswith("HOPYARD_") and k not in ("RANK", "WORLD_SIZE", "MASTER_PORT")
}


class Replica:
    """A folder like a replica's, in which scripts run as under `hop run`."""

    def __init__(self, root: Path, name: str = "0") -> None:
        self.folder = root / "replica" / name
        (self.folder / "streams").mkdir(parents=True)
        self.env: dict[str, str] = {
            **CLEAN,
            "HOPYARD_HOME": str(root / "home"),
            "HOPYARD_REPLICA_DIR": str(self.folder),
            "HOPYARD_RUN": "alice/test/1",
            "HOPYARD_RUN_ID": "r1",
            "HOPYARD_ATTEMPT": "r1.1",
            "RANK": "0",
            "WORLD_SIZE": "1",
        }

    def start(self, code: str, **env: str) -> subprocess.Popen[str]:
        return start(code, self.folder, {**self.env, **env})

    def run(self, code: str, *, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        return finish(self.start(code, **env), ok=ok)

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_events(self.folder)

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def points(self) -> list[tuple[str, Point]]:
        return read_points(self.folder)

    @property
    def checkpoints(self) -> list[int]:
        root = self.folder / "checkpoints"
        return sorted(int(f.name) for f in root.iterdir() if f.name.isdecimal()) if root.exists() else []


def start(code: str, cwd: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    script = cwd / "main.py"
    write_atomically(script, code.encode())  # an earlier process may be reading it at this moment
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, ok: bool = True) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=180)
    assert (process.returncode == 0) is ok, err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def read_events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "streams" / "events").read_text().splitlines()]


def read_points(folder: Path) -> list[tuple[str, Point]]:
    data = (folder / "streams" / "metrics").read_bytes()
    names: dict[int, str] = {}
    *points, consumed = read_records(data, names)
    assert consumed == len(data)
    return [(names[p.series], p) for p in points if isinstance(p, Point)]
