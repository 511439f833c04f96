"""Where the peers' interpreter is."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

PEERS_VARIABLE = "HOPYARD_BENCH_PEERS"


@dataclass(frozen=True, slots=True)
class PeerPython:
    """The interpreter of an environment with some or all packages of the `bench` extra."""

    executable: Path

    def command(self, name: str) -> Path:
        """A console script of that environment, such as `ray`."""
        return self.executable.with_name(name)

    def versions(self, *names: str) -> dict[str, str]:
        """Returns the installed packages with their versions."""
        program = (
            "import importlib.metadata as m, json, sys\nfound = {}\nfor n in sys.argv[1:]:\n"
            " try: found[n] = m.version(n)\n except m.PackageNotFoundError: pass\nprint(json.dumps(found))"
        )
        told = subprocess.run(
            [self.executable, "-c", program, *names], check=True, capture_output=True, text=True
        )
        return dict(json.loads(told.stdout))


def find_peers(given: str | None) -> PeerPython | None:
    """Returns the peers from the option, else from `$HOPYARD_BENCH_PEERS`: an interpreter, or the folder of
    an environment."""
    text = given or os.environ.get(PEERS_VARIABLE)
    if not text:
        return None
    path = Path(text).expanduser().absolute()  # never resolved: an environment's python is a link out of it
    if path.is_dir():
        path = path / "bin" / "python"
    if not os.access(path, os.X_OK):
        raise SystemExit(
            f"error: {path} is not an interpreter\nhint: make it with `python -m benchmarks.peers "
            "install VENV`"
        )
    return PeerPython(path)
