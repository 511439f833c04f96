"""Files of a killed driver on a store are removed when the next driver starts; nothing else is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hopyard.spark.scratch_ownership import ScratchOwnership, process_identity
from hopyard.spark.stores.select import select_store

SAYS_WHO = (
    "import sys\nfrom hopyard.spark.scratch_ownership import process_identity\n"
    "print(process_identity(), flush=True)\nsys.stdin.read()"
)


@contextmanager
def driver() -> Iterator[str]:
    """Yields the identity of a driver process that is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAYS_WHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", ["file", "s3", "viewfs"])
def test_only_remains_of_killed_local_driver_are_removed(
    request: Any, tmp_path: Path, capsys: Any, kind: str
) -> None:
    spark = request.getfixturevalue("spark") if kind == "viewfs" else None
    if kind == "viewfs":
        request.getfixturevalue("lake")
    settings = request.getfixturevalue("s3") if kind == "s3" else {}
    root = {
        "file": (tmp_path / "store").as_uri(),
        "s3": "s3://hop/claims",
        "viewfs": "viewfs://lake/data/claims",
    }[kind]
    store = partial(select_store, spark, settings=settings)
    claims, owners = ScratchOwnership(spark, store, root), store(f"{root}/owners")
    claims.remove_abandoned()
    assert capsys.readouterr().err == "", "nobody was here before"
    with driver() as killed:
        boot, _, pid, _ = killed.split(".")
    with driver() as lives, claims.hold("mine-1"):
        left = {
            "v0.killed-1": killed,
            "lives-1": lives,
            "elsewhere-1": killed.replace(boot, "another-host"),
            "contained-1": ".".join((boot, "1", pid, "5")),
            "reused-1": process_identity().rpartition(".")[0] + ".5",
        }
        for name, owner in left.items():
            owners.create_file(spark, f"{name}.{owner}")
        owners.create_file(spark, "something else")
        owners.create_file(spark, f"...{killed}")
        folders = {name: store(f"{root}/{name}") for name in (*left, "mine-1")}
        for folder in folders.values():
            folder.create_file(spark, "rows.parquet")
        claims.remove_abandoned()
        assert {name for name, folder in folders.items() if not folder.list_files(spark)} == {
            "v0.killed-1",
            "reused-1",
        }
        stderr = capsys.readouterr().err
        assert f"{root}/v0.killed-1 is removed: the driver that created it was killed" in stderr
        assert stderr.count("hopyard: ") == 2
        claims.remove_abandoned()
        assert capsys.readouterr().err == "", "once"
    assert {name.rsplit(".", 4)[0] for name in owners.list_files(spark)} == {
        "lives-1",
        "elsewhere-1",
        "contained-1",
        "something else",
        "..",
    }
