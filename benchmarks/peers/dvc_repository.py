"""A DVC repository with a remote in a local folder."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.find import PeerPython


@dataclass(frozen=True, slots=True)
class DvcRepository:
    """A repository with all its caches and settings below one folder: no file of the user is read or
    written."""

    root: Path
    folder: Path
    peers: PeerPython

    @classmethod
    def create(cls, folder: Path, peers: PeerPython) -> DvcRepository:
        made = cls(folder / "repository", folder, peers)
        made.root.mkdir()
        made._git("init", "--quiet")
        made._dvc("init", "--quiet")
        made._dvc("remote", "add", "--quiet", "--default", "local", str(folder / "remote"))
        made._dvc("config", "core.analytics", "false")
        made._dvc("config", "core.check_update", "false")
        made._dvc("config", "core.site_cache_dir", str(folder / "site"))
        return made

    def push(self) -> None:
        """`dvc add` and `dvc push` of the folder `data`."""
        self._dvc("add", "--quiet", "data")
        self._dvc("push", "--quiet")

    def clone(self, target: Path) -> DvcRepository:
        """Clones the repository without data and without a cache."""
        self._git("add", "--all")
        self._git(
            "-c",
            "user.name=bench",
            "-c",
            "user.email=bench@localhost",
            "commit",
            "--quiet",
            "--message",
            "data",
        )
        self._git("clone", "--quiet", str(self.root), str(target))
        cloned = DvcRepository(target, self.folder, self.peers)
        cloned._dvc("config", "--local", "core.site_cache_dir", str(self.folder / "site-of-the-clone"))
        return cloned

    def pull(self) -> None:
        self._dvc("pull", "--quiet")

    def _dvc(self, *words: str) -> str:
        environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
        environment["DVC_GLOBAL_CONFIG_DIR"] = environment["DVC_SYSTEM_CONFIG_DIR"] = str(
            self.folder / "settings"
        )
        return self._run([str(self.peers.command("dvc")), *words], environment)

    def _git(self, *words: str) -> str:
        return self._run(["git", *words], dict(os.environ))

    def _run(self, command: list[str], environment: dict[str, str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.root if self.root.exists() else self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout


def cache_types(folder: Path, peers: PeerPython) -> str:
    """The kinds of links that DVC finds possible on this file system (`dvc version`); without reflinks it
    copies."""
    place = folder / "types"
    place.mkdir()
    repository = DvcRepository.create(place, peers)
    (repository.root / "data").write_text("DVC tells only once it has a cache")
    repository._dvc("add", "--quiet", "data")
    lines = repository._dvc("version").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("Cache types:")), "unknown"
    )
