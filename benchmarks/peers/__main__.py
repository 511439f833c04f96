"""`python -m benchmarks.peers install VENV` creates the environment of the peers; `… show` lists the
available peers."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from uv import find_uv_bin

from benchmarks.peers.find import PEERS_VARIABLE, find_peers

NAMES = ("ray", "dvc", "trackio", "mlflow", "tensorboardX")


def requirements() -> list[str]:
    """The `bench` extra of pyproject.toml."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"]["bench"])


def install(venv: Path, also: Sequence[str] = ()) -> None:
    """Creates the environment, or completes the existing one. also: further packages."""
    uv, environment = find_uv_bin(), dict(os.environ)
    if "PIP_FIND_LINKS" in environment:  # uv ignores pip's settings
        environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, str(venv)], check=True, env=environment
        )
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(python), *requirements(), *also],
        check=True,
        env=environment,
    )
    print(f"the peers are in {venv}; now: export {PEERS_VARIABLE}={venv.absolute()}")


def show(given: str | None) -> None:
    peers = find_peers(given)
    if peers is None:
        print(f"no peers: {PEERS_VARIABLE} is not set")
        return
    for name, version in peers.versions(*NAMES).items():
        print(name, version)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    making = commands.add_parser("install")
    making.add_argument("venv", type=Path)
    making.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="for mop_study: 'ray[tune]' and the torch that Hopyard's environment has",
    )
    commands.add_parser("show").add_argument("--peer-python")
    options = parser.parse_args(argv)
    if options.command == "install":
        install(options.venv, options.also)
    else:
        show(options.peer_python)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
