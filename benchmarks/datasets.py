"""Pushing and pulling a dataset: 10,000 files of 10 KiB, and one file of 1 GiB, beside DVC with a remote in a
local folder.

    python -m benchmarks.datasets [--files 10000] [--file-bytes 10240] [--large-bytes 1073741824]

Every command is timed as a whole process. Push: `hop dataset push`; `dvc add` and `dvc push`. Pull, into an
empty folder by somebody who has nothing of it yet: `hop dataset pull`; `dvc pull` in a fresh clone with an
empty cache. Push again, unchanged: the same commands once more. Each round has new random bytes, a new server
and a new repository. The files were written just before, so they are in the page cache for both, and `sync`
has been called, so neither pays for the other's writing. What is pulled is compared byte by byte. DVC runs
with its default settings; only its usage report and its look for updates are off. Bound: `cp -r` of the same
files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from blake3 import blake3

from benchmarks.harness import Arguments, Report, alternate_many, main, ratio
from benchmarks.local_server import local_server, scratch_folder
from benchmarks.peers.dvc_repository import DvcRepository, cache_types
from benchmarks.peers.find import PeerPython

NAME = "datasets"
PER_FOLDER = 1000
REPUSHES = 3
# A round's folder with more files than this is removed at the end only: for minutes after the removal of many
# files ext4 creates files 20 times more slowly (it scans every inode freed lately), which would slow down the
# next side.
FEW_FILES = 1000
_WRITE_BYTES = 16 << 20
Shape = tuple[str, int, int]  # name, number of files, bytes of each


def fill(folder: Path, files: int, size: int) -> None:
    """Writes random files and waits until they are on the disk."""
    for first in range(0, files, PER_FOLDER):
        part = folder / f"{first // PER_FOLDER:04}"
        part.mkdir(parents=True)
        for number in range(first, min(first + PER_FOLDER, files)):
            with (part / f"{number:06}.bin").open("wb") as file:
                for at in range(0, size, _WRITE_BYTES):
                    file.write(os.urandom(min(_WRITE_BYTES, size - at)))
    os.sync()


def content(folder: Path) -> dict[str, str]:
    """Each file's path and digest."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        hasher = blake3(max_threads=blake3.AUTO)
        hasher.update_mmap(path)
        found[str(path.relative_to(folder))] = hasher.hexdigest()
    return found


def check(pulled: Path, pushed: Path) -> None:
    """Raises RuntimeError unless both hold the same bytes."""
    if content(pulled) != content(pushed):
        raise RuntimeError(f"what was pulled into {pulled.name} is not what was pushed")


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def hop_round(folder: Path, shape: Shape) -> dict[str, float]:
    name, files, size = shape
    data, pulled = folder / "data", folder / "pulled"
    with local_server(folder) as server:
        fill(data, files, size)
        found = {f"hop_push_{name}": timed(lambda: server.hop("dataset", "push", "bench", str(data)))}
        again = [timed(lambda: server.hop("dataset", "push", "bench", str(data))) for _ in range(REPUSHES)]
        found[f"hop_repush_{name}"] = sorted(again)[REPUSHES // 2]
        os.sync()
        found[f"hop_pull_{name}"] = timed(lambda: server.hop("dataset", "pull", "bench", str(pulled)))
        check(pulled, data)
    return found


def dvc_round(folder: Path, shape: Shape, peers: PeerPython) -> dict[str, float]:
    name, files, size = shape
    repository = DvcRepository.create(folder, peers)
    data = repository.root / "data"
    fill(data, files, size)
    found = {f"dvc_push_{name}": timed(repository.push)}
    found[f"dvc_repush_{name}"] = timed(repository.push)
    os.sync()
    clone = repository.clone(folder / "clone")
    found[f"dvc_pull_{name}"] = timed(clone.pull)
    check(clone.root / "data", data)
    return found


def copy_round(folder: Path, shape: Shape) -> dict[str, float]:
    name, files, size = shape
    fill(folder / "data", files, size)
    return {
        f"cp_{name}": timed(
            lambda: subprocess.run(["cp", "-r", folder / "data", folder / "copy"], check=True)
        )
    }


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    settings = {
        "files": options.files,
        "file_bytes": options.file_bytes,
        "large_bytes": options.large_bytes,
        "repeats": options.repeats,
    }
    report = Report(NAME, settings)
    shapes: list[Shape] = [("many", options.files, options.file_bytes), ("large", 1, options.large_bytes)]
    dvc = peers.versions("dvc") if peers else {}
    report.peers = dvc
    number = iter(range(1_000_000))
    with scratch_folder() as folder:

        def place(measure_one: Callable[[Path], dict[str, float]]) -> Callable[[], dict[str, float]]:
            def measure_inside() -> dict[str, float]:
                run_folder = folder / str(next(number))
                run_folder.mkdir()
                try:
                    return measure_one(run_folder)
                finally:
                    if sum(1 for _ in run_folder.rglob("*")) < FEW_FILES:
                        shutil.rmtree(run_folder)

            return measure_inside

        sides = []
        for shape in shapes:
            sides.append(place(lambda run_folder, shape=shape: hop_round(run_folder, shape)))  # type: ignore[misc]
            if peers and dvc:
                sides.append(place(lambda run_folder, shape=shape: dvc_round(run_folder, shape, peers)))  # type: ignore[misc]
            sides.append(place(lambda run_folder, shape=shape: copy_round(run_folder, shape)))  # type: ignore[misc]
        found = alternate_many(options.repeats, sides)
        if peers and dvc:
            report.notes.append(
                "DVC's cache.type is its default (reflink,copy); this file system offers: "
                f"{cache_types(folder, peers)}"
            )
    told = {
        "many": f"{options.files} files of {options.file_bytes} bytes",
        "large": f"one file of {options.large_bytes} bytes",
    }
    for name, _, _ in shapes:
        report.add(f"push_{name}", "s", found[f"hop_push_{name}"], note=f"`hop dataset push`, {told[name]}")
        report.add(
            f"pull_{name}", "s", found[f"hop_pull_{name}"], note="`hop dataset pull` into an empty folder"
        )
        report.add(
            f"repush_{name}",
            "s",
            found[f"hop_repush_{name}"],
            note=f"`hop dataset push` with nothing changed (a round is the median of {REPUSHES})",
        )
        report.add(f"cp_{name}", "s", found[f"cp_{name}"], "bound", "`cp -r` of the same")
        for what in ("push", "pull", "repush") if dvc else ():
            report.add(f"dvc_{what}_{name}", "s", found[f"dvc_{what}_{name}"], "peer")
            report.measurements.append(
                ratio(
                    f"{what}_{name}_ratio",
                    found[f"dvc_{what}_{name}"],
                    found[f"hop_{what}_{name}"],
                    note="DVC / Hopyard",
                )
            )
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--file-bytes", type=int, default=10_240)
    parser.add_argument("--large-bytes", type=int, default=1 << 30)
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
