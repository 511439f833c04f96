"""A script puts links in the place of what its replica sends, writes or clears away: the replica, which sees the whole home, follows none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.bench import LocalBench
from hopyard.private_files import open_inside
from hopyard.replica.folder import Folder
from replica.conftest import Play

_PLANTS = """
import json, os, time
replica = os.environ["HOPYARD_REPLICA_DIR"]
home = replica.partition("/attempts/")[0]
for name, target in (("streams/tensorboard", "token"), ("checkpoints/7", "private"), ("outputs", "private"), ("streams/journal", "missing")):
    os.symlink(f"{home}/{target}", f"{replica}/{name}")
os.makedirs("sub/deep")
open("sub/deep/made.txt", "w").write("made by the run")
open("config.yaml", "w").write("planted: true")
with open(f"{replica}/streams/events", "a") as events:
    events.write(json.dumps({"t": time.time(), "kind": "checkpoint", "step": 7, "folder": "7"}) + "\\n")
"""


def test_a_replica_follows_no_link_of_its_script(play: Play) -> None:
    async def scenario(bench: LocalBench) -> None:
        private = bench.home.root / "private"
        private.mkdir()
        for file in (bench.home.root / "token", private / "spec.json"):
            file.write_text("SECRET OF ANOTHER")
        await bench.launch("a.1", _PLANTS)
        assert [ended.code for ended in await bench.exits("a.1")] == [0]
        assert b"made by the run" in bench.sink.blobs.values(), "its own files are sent"
        assert not [blob for blob in bench.sink.blobs.values() if b"SECRET OF ANOTHER" in blob]
        assert bench.sink.stream("a.1", 0, "tensorboard") == b""
        assert sorted(path.name for path in private.iterdir()) == ["spec.json"]
        assert not (bench.home.root / "missing").exists()

    play(scenario)


def test_nothing_is_written_to_where_a_link_in_the_place_of_the_folder_leads(tmp_path: Path) -> None:
    folder, other = Folder(tmp_path / "a.1" / "0"), tmp_path / "other"
    for place in (folder.root, other):
        place.mkdir(parents=True)
        (place / "spec.json").write_text("{}")
    folder.write_token("own")
    folder.root.rename(tmp_path / "away")
    folder.root.symlink_to(other)
    folder.write_token("renewed")
    assert not folder.is_there()
    assert sorted(path.name for path in other.iterdir()) == ["spec.json"]


@pytest.mark.parametrize("swapped", ["0", "0/streams", "0/streams/events"])
def test_nothing_is_opened_through_a_link(tmp_path: Path, swapped: str) -> None:
    for folder in ("gang/0/streams", "other/0/streams"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "events").write_text("x")
    place = tmp_path / "gang" / swapped
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "other" / swapped)
    with pytest.raises(FileNotFoundError):
        open_inside(tmp_path / "gang" / "0", "streams/events", 0)
