"""Code is packed with what git tracks; what ignore files leave out is named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hopyard.client.code_symlinks import kept_links
from hopyard.client.feedback import no_progress
from hopyard.client.git_state import GitProbe
from hopyard.client.ignore_check import failed_run_hint, missing_file_hint
from hopyard.client.pack_code import pack_code
from hopyard.datasets.packed_tree import PackedTree
from hopyard.errors import SpecError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "code"
    (folder / "data").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / "data" / "train.bin").write_bytes(bytes(2 << 20))
    (folder / "main.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("# data\ndata/\n*.json\n")
    return folder


def pack(folder: Path, *words: str, omitted: Iterable[str] = ()) -> tuple[PackedTree, list[str]]:
    lines: list[str] = []
    probe = GitProbe(folder)
    try:
        command = ("python", *(words or ("main.py",)))
        tree = pack_code(
            folder, probe, [command], notify=lines.append, on_progress=no_progress, omitted=omitted
        )
    finally:
        probe.close()
    return tree, lines


def packed_paths(tree: PackedTree) -> set[str]:
    return {
        path for path in ("main.py", "cfg.json", "data/train.bin") if f'"{path}"' in tree.encoded.decode()
    }


def test_large_ignored_folder_is_named_with_its_line(folder: Path) -> None:
    _, lines = pack(folder)
    assert lines[0] == "note: not packed: data/ (2.0 MiB; .gitignore, line 2)" and "!data/" in lines[1]


def test_small_ignored_file_is_named_only_if_the_run_names_it(folder: Path) -> None:
    (folder / "data" / "train.bin").write_bytes(b"1")
    (folder / "cfg.json").write_text("{}")
    assert pack(folder)[1] == []
    assert (
        "`cfg.json`, which is not packed: .gitignore, line 3" in pack(folder, "main.py", "--c=cfg.json")[1][0]
    )
    (folder / "main.py").write_text("open('data/train.bin')\n")
    assert "`data/train.bin`, which is not packed: .gitignore, line 2" in pack(folder)[1][0]


def test_path_that_a_dataset_supplies_is_no_missing_one(folder: Path) -> None:
    (folder / "main.py").write_text("open('data/train.bin')\n")
    assert pack(folder, omitted=["data/train.bin"])[1] == []
    assert not any("the run names" in line for line in pack(folder, "main.py", "--data={dataset:d}")[1])


def test_results_of_earlier_runs_are_not_named(folder: Path) -> None:
    (folder / "data").rename(folder / "wandb")
    (folder / ".gitignore").write_text("wandb/\n")
    assert pack(folder)[1] == []


def test_tracked_file_is_packed_although_it_is_ignored(folder: Path) -> None:
    (folder / "cfg.json").write_text("{}")
    (folder / "data" / "other.bin").write_bytes(b"2")
    subprocess.run(["git", "-C", folder, "add", "-f", "cfg.json", "data/train.bin"], check=True)
    tree, _ = pack(folder)
    assert packed_paths(tree) == {"main.py", "cfg.json", "data/train.bin"}
    assert [entry.path for entry in tree.left_out] == ["data/other.bin"]
    (folder / ".hopignore").write_text("cfg.json\n")
    assert packed_paths(pack(folder)[0]) == {"main.py", "data/train.bin"}


def test_submodule_is_packed_by_its_own_ignore_files(folder: Path) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / ".git").write_text("gitdir: ../.git/modules/lib\n")
    (folder / "lib" / "cfg.json").write_text("{}")
    tree, _ = pack(folder)
    assert '"lib/cfg.json"' in tree.encoded.decode() and "gitdir" not in tree.encoded.decode()
    assert '"lib/.git"' not in tree.encoded.decode()


def test_ignored_script_is_refused(folder: Path) -> None:
    (folder / ".gitignore").write_text("main.py\n")
    with pytest.raises(SpecError, match=r"main.py is not packed: .gitignore, line 1"):
        pack(folder)


def test_file_of_an_odd_name_is_left_out_and_named(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.py")).touch()
    (folder / "new\nline").mkdir()
    (folder / "new\nline" / "file").touch()
    tree, lines = pack(folder)
    assert tree.files == 2 and packed_paths(tree) == {"main.py"}
    expected = (
        r"warning: not packed, for its name: caf\xe9.py (it is not UTF-8), new\nline/ (it holds control"
    )
    assert lines[0].startswith(expected)
    with pytest.raises(SpecError, match="cannot be packed: it is not UTF-8"):
        pack(folder, os.fsdecode(b"caf\xe9.py"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_own_ignore_file_of_another_encoding_is_read(folder: Path, encoding: str) -> None:
    (folder / ".hopignore").write_bytes("# é\n!data/\n".encode(encoding))
    assert "data/train.bin" in packed_paths(pack(folder)[0])


def test_missing_file_of_a_failed_run_is_explained(folder: Path) -> None:
    reason = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'"
    hint = missing_file_hint(folder, reason)
    assert hint is not None and "`data/train.bin` was not packed: .gitignore, line 2" in hint
    assert missing_file_hint(folder, reason.replace("data/train.bin", "other.bin")) is None
    assert missing_file_hint(folder, "ValueError: 'data/train.bin'") is None
    run: Any = {
        "phase": "failed",
        "spec": {"roles": [{"command": ["python", "main.py"]}]},
        "exit": {"reason": reason},
    }
    assert failed_run_hint(run, folder) == hint
    assert failed_run_hint(run, folder / "data") is None  # not the folder of its code
    assert failed_run_hint({**run, "phase": "succeeded"}, folder) is None


def test_hint_includes_the_other_files_of_the_folder(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.bin\n*.pkl\n")
    (folder / "data" / "meta.pkl").touch()
    hint = missing_file_hint(folder, "FileNotFoundError: [Errno 2] No such file: 'data/train.bin'")
    assert hint is not None and "`data/train.bin` (and 1 other path of its folder)" in hint
    assert "write `!data/*` into .hopignore" in hint
    (folder / ".hopignore").write_text("!data/*\n")
    tree, _ = pack(folder)
    assert '"data/meta.pkl"' in tree.encoded.decode() and packed_paths(tree) >= {"data/train.bin"}


def test_what_a_dataset_replaces_is_not_packed(folder: Path) -> None:
    (folder / ".gitignore").unlink()
    assert packed_paths(pack(folder)[0]) == {"main.py", "data/train.bin"}
    assert packed_paths(pack(folder, omitted=["data", ""])[0]) == {"main.py"}


def test_link_with_a_target_that_no_file_system_has_is_left_out(folder: Path) -> None:
    (folder / "long").symlink_to("/" + 300 * "a")
    lines: list[str] = []
    assert kept_links(pack(folder)[0], (), lines.append) == {}
    assert lines[0].startswith("warning: links without a usable target are not packed: long -> /aaa")


def test_link_above_the_place_of_a_dataset_becomes_a_folder(folder: Path) -> None:
    (folder / "sets").symlink_to("/usr")
    lines: list[str] = []
    assert kept_links(pack(folder)[0], ["", "./sets/mnist", "../x"], lines.append) == {}
    assert lines == [
        "note: the run has a folder `sets` in place of the link, for the dataset at `sets/mnist`"
    ]
    assert kept_links(pack(folder)[0], ["setsx/mnist"], lines.append) == {"sets": "/usr"}


def test_too_many_links_are_refused(folder: Path) -> None:
    (folder / "images").mkdir()
    for number in range(1001):
        (folder / "images" / str(number)).symlink_to("/dev/null")
    with pytest.raises(SpecError, match="1,001 links lead out of the folder, and a run has at most 1,000"):
        kept_links(pack(folder)[0], (), print)


def test_content_that_git_has_not_fetched_is_named(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "a" + "\nsize 12345\n"
    (folder / "weights.pt").write_text(pointer)
    (folder / "data").rename(folder.parent / "data")
    assert pack(folder)[1] == [], "without the filter of LFS it is a text"
    (folder / ".gitattributes").write_text("*.pt filter=lfs diff=lfs merge=lfs -text\n")
    (folder / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = ../lib\n')
    (folder / "lib").mkdir()
    assert pack(folder)[1] == [
        "warning: not checked out: submodule lib",
        "hint: run `git submodule update --init`",
        "warning: pointers of Git LFS are packed in place of the content: file weights.pt",
        "hint: run `git lfs pull`",
    ]
    (folder / "lib" / "a.py").touch()
    (folder / "weights.pt").write_bytes(bytes(130))
    assert pack(folder)[1] == []


@pytest.mark.parametrize("place", ["cfg.txt", "cfg.txt/x", "main.py"])
def test_dataset_never_replaces_a_file_of_the_code(folder: Path, place: str) -> None:
    (folder / "cfg.txt").write_text("1")
    file = place.removesuffix("/x")
    with pytest.raises(SpecError) as error:
        pack(folder, omitted=["", "data", place])
    assert str(error.value) == f"a dataset cannot be placed at `{place}`: `{file}` is a file of the code"
    assert "`-d NAME=data`" in error.value.hints[0] and ".hopignore" in error.value.hints[1]


def test_dataset_takes_the_place_of_a_file_that_is_not_packed(folder: Path) -> None:
    (folder / "cfg.json").write_text("{}")
    tree, _ = pack(folder, omitted=["cfg.json", "../up", "/abs"])
    assert packed_paths(tree) == {"main.py"}
