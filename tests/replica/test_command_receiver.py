"""Commands of users on their way to the script."""

from __future__ import annotations

from pathlib import Path

from hopyard.replica.command_receiver import CommandReceiver
from hopyard.sdk.command_file import CommandFile


def test_commands_are_stored_in_the_folder_of_the_gang_only(tmp_path: Path) -> None:
    own, other, linked = (tmp_path / name for name in ("own", "other", "linked"))
    for folder in (own, other / "turns", linked):
        folder.mkdir(parents=True)
    (linked / "turns").symlink_to(other / "turns")
    command = {"number": 1, "kind": "pause", "arguments": {}, "user": "alice"}
    receivers = [CommandReceiver(folder) for folder in (own, linked)]
    for receiver in receivers:
        receiver.deliver([command])
    assert [receiver.newest for receiver in receivers] == [1, 0]
    assert CommandFile(str(own)).read(0, 1) == [command]
    assert list((other / "turns").iterdir()) == []
