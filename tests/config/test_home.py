"""A home's folders and files are readable by its owner only, and belong to the user who uses them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.config.home import Home
from hopyard.errors import SpecError
from hopyard.private_files import make_folder, open_file, write_atomically

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
ANOTHER = 54321


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("data", ["hop_x\r\n".encode("utf-16"), b"\xef\xbb\xbfhop_x", b"hop_x\n"])
def test_token_file_of_another_encoding_is_read(tmp_path: Path, data: bytes) -> None:
    home = Home(tmp_path)
    home.token_file.write_bytes(data)
    assert home.read_token() == "hop_x"
    home.token_file.write_bytes(b"hop_\xff")
    with pytest.raises(SpecError, match="token: line 1: not UTF-8"):
        home.read_token()


@pytest.mark.usefixtures("umask")
def test_folders_and_files_are_private_for_any_umask(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a" / "b")
    assert (mode(folder), mode(folder.parent)) == (0o700, 0o700)
    write_atomically(folder / "c" / "file", b"x")
    assert mode(folder / "c") == 0o700 and not mode(folder / "c" / "file") & 0o077
    os.close(open_file(folder / "file", os.O_WRONLY | os.O_CREAT))
    assert not mode(folder / "file") & 0o077
    assert make_folder(folder) == folder, "an existing folder is no error"
    with pytest.raises(OSError):
        make_folder(folder / "file" / "below")


def test_existing_home_is_made_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o777)
    assert mode(home.create().root) == 0o700
    home.root.chmod(0o755)
    home.check()
    assert mode(home.root) == 0o700


def test_everything_below_an_open_folder_is_made_private_except_script_output(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    deep = home.blobs / "packs" / "00"
    work = home.attempts / "1.1" / "0" / "work"
    shut = home.streams / "run"
    for folder in (deep, work, shut):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
        (folder / "file").chmod(0o644)
    home.streams.chmod(0o700)  # no other user could enter it
    home.database.write_text("x")
    home.database.chmod(0o644)
    (home.blobs / "link").symlink_to(outside)
    (deep / "program").write_text("x")
    (deep / "program").chmod(0o755)
    (deep / "locked").mkdir(mode=0o555)
    list(home.make_entries_private())
    assert [
        mode(path)
        for path in (home.database, home.blobs, deep, deep / "file", deep / "program", deep / "locked")
    ] == [0o600, 0o700, 0o700, 0o600, 0o700, 0o500]
    assert mode(work) == 0o700 and mode(work / "file") == 0o644, "files of a script keep their mode"
    assert mode(shut / "file") == 0o644, "folders below a private folder are not scanned at every start"
    assert mode(outside) == 0o644, "links are not followed"


@needs_root
def test_home_of_another_user_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    os.chown(home.root, ANOTHER, -1)
    for use in (home.create, home.check):
        with pytest.raises(
            SpecError, match=rf"belongs to {ANOTHER} \(uid {ANOTHER}\), and this is root"
        ) as refused:
            use()
        assert "run this as" in refused.value.hints[0]
    os.chown(home.root, 0, -1)
    home.check()
    home.server_file.write_text("{}")
    os.chown(home.server_file, ANOTHER, -1)
    with pytest.raises(SpecError, match=r"server\.json belongs to"):
        home.check()


@needs_root
@pytest.mark.parametrize("name", ["login.json", "config.yaml", "restored.json", "zzz"])
def test_file_of_another_user_in_an_open_home_is_refused_each_time(tmp_path: Path, name: str) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o777)
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub").chmod(0o775)
    planted = home.root / name
    if name == "zzz":
        planted.symlink_to(mine)
    else:
        planted.write_text("{}")
    os.chown(planted, ANOTHER, -1, follow_symlinks=False)
    for use in (home.create, home.check):
        with pytest.raises(SpecError, match=f"{name} belongs to") as refused:
            use()
        assert "remove it" in refused.value.hints[1]
    planted.unlink()
    home.check()
    planted.symlink_to(mine)  # the owner's own, to a folder that is none of Hopyard's
    list(home.make_entries_private())
    assert mode(mine / "sub") == 0o775


@needs_root
def test_file_of_another_user_below_an_open_folder_is_refused_at_start(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    packs = home.blobs / "packs"
    packs.mkdir(parents=True)
    for folder in (home.blobs, packs):
        folder.chmod(0o777)
    (packs / "planted").write_text("x")
    os.chown(packs / "planted", ANOTHER, -1)
    with pytest.raises(SpecError, match="planted belongs to"):
        list(home.make_entries_private())


def test_folder_on_another_disk_is_made_private_there(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    disk = tmp_path / "disk" / "blobs"
    (disk / "packs").mkdir(parents=True)
    disk.chmod(0o755)
    (disk / "packs").chmod(0o755)
    home.blobs.symlink_to(disk)
    home.check()
    list(home.make_entries_private())
    assert (mode(disk), mode(disk / "packs")) == (0o700, 0o755)


def test_home_below_a_file_is_refused_and_a_missing_home_is_not(tmp_path: Path) -> None:
    Home(tmp_path / "none").check()
    (tmp_path / "file").touch()
    for root, message in (
        (tmp_path / "file", "is a file, not a folder"),
        (tmp_path / "file" / "below", "cannot be a folder"),
    ):
        with pytest.raises(SpecError, match=message):
            Home(root).check()
