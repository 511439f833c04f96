"""Where one user's Hopyard lives on this machine. Standard library only; nothing is created until it is needed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME_VARIABLE = "HOPYARD_HOME"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below one home folder. See docs/designs/0001-main-path.md, section 2."""

    root: Path

    @classmethod
    def default(cls) -> Home:
        """`$HOPYARD_HOME`, or `~/.hopyard`."""
        given = os.environ.get(HOME_VARIABLE)
        return cls(Path(given).expanduser().absolute() if given else Path.home() / ".hopyard")

    @property
    def server_file(self) -> Path:
        return self.root / "server.json"

    @property
    def server_lock(self) -> Path:
        return self.root / "server.lock"

    @property
    def start_lock(self) -> Path:
        return self.root / "start.lock"

    @property
    def token_file(self) -> Path:
        return self.root / "token"

    @property
    def mark_file(self) -> Path:
        """A few random digits that tell this home from others on the same database."""
        return self.root / "mark"

    @property
    def login_file(self) -> Path:
        """`{"url","token"}` of a team's server, 0600; where it is missing, the embedded one serves."""
        return self.root / "login.json"

    @property
    def settings_file(self) -> Path:
        return self.root / "config.yaml"

    @property
    def database(self) -> Path:
        return self.root / "hopyard.db"

    @property
    def server_log(self) -> Path:
        return self.root / "logs" / "server.log"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    @property
    def sweep_lock(self) -> Path:
        """Held while blobs are removed, or while a backup needs that none is."""
        return self.blobs / "sweep.lock"

    @property
    def restored_file(self) -> Path:
        """Of which backup the home was made: until the first start has cordoned its nodes."""
        return self.root / "restored.json"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def trees(self) -> Path:
        return self.root / "cache" / "trees"

    @property
    def envs(self) -> Path:
        return self.root / "cache" / "envs"

    @property
    def held(self) -> Path:
        """Markers of what the caches hold, see `engines.local.held`."""
        return self.root / "cache" / "held"

    @property
    def pack_cache(self) -> Path:
        """What the packer remembers of files that it has hashed."""
        return self.root / "cache" / "packed"

    @property
    def offline(self) -> Path:
        return self.root / "offline"

    def kept_of(self, run: str) -> Path:
        """What the replicas of a run could never store on the server."""
        return self.root / "kept" / run

    def create(self) -> Home:
        """Make the root folder, readable by its owner only. Idempotent."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self

    def read_server(self) -> dict[str, Any] | None:
        """What `server.json` says, None where there is none (or it is not whole)."""
        try:
            found = json.loads(self.server_file.read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "url" in found else None

    def read_restored(self) -> str | None:
        """When the backup was made that this home was made of; None where nothing is to be held back for that."""
        try:
            return str(json.loads(self.restored_file.read_bytes())["created_at"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return "an unknown time"

    def read_token(self) -> str | None:
        try:
            return self.token_file.read_text().strip() or None
        except OSError:
            return None


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace `path` by `data` so that a reader sees the old or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
