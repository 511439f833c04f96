from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import hopyard
from hopyard.datasets.ignore_rules import ALL_FILES_RULES, CODE_RULES, DATA_RULES, EXACT_RULES, IgnoreRules
from hopyard.datasets.pack import pack_tree
from hopyard.datasets.progress import NO_PROGRESS
from hopyard.domain.manifest import CHUNK_BYTES, Manifest
from hopyard.domain.text import escape
from hopyard.errors import SpecError

from .folder_transport import digest_of, make_tree


def paths(root: Path, rules: IgnoreRules = DATA_RULES) -> list[str]:
    manifest = Manifest.decode(pack_tree(root, rules=rules).encoded)
    return sorted(
        [f.path for f in manifest.files]
        + [link.path for link in manifest.links]
        + [f + "/" for f in manifest.folders]
    )


def wait_for_new_timestamps() -> None:
    """Waits until a change of the last written file would show in its timestamps."""
    until = time.time_ns() + 60_000_000
    while time.time_ns() < until:
        time.sleep(0.005)


# -- what belongs to a tree ----------------------------------------------------------------------------------


def test_code_omits_git_ignored_and_generated_files(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path / "code",
        {
            ".gitignore": "*.log\n/out/\n!keep.log\n",
            ".hopignore": "big.bin\n!sub/needed.log\n",
            "main.py": "",
            "a.log": "",
            "keep.log": "",
            "out/x": "",
            "sub/out/y": "",
            "sub/.gitignore": "local\n",
            "sub/local": "",
            "local": "",
            "sub/needed.log": "",
            "sub/b.log": "",
            "big.bin": "",
            "__pycache__/main.pyc": "",
            "sub/x.pyc": "",
            ".git/config": "",
            ".venv/bin/python": "",
            "node_modules/x/y.js": "",
        },
    )
    assert paths(root, CODE_RULES) == [
        ".gitignore",
        ".hopignore",
        "keep.log",
        "local",
        "main.py",
        "sub/.gitignore",
        "sub/needed.log",
        "sub/out/y",
    ]


def test_code_in_subfolder_honours_parent_ignore_files(tmp_path: Path) -> None:
    make_tree(
        tmp_path / "repo",
        {
            ".git/config": "",
            ".gitignore": "/part/data/\n*.tmp\n",
            "part/data/x": "",
            "part/a.py": "",
            "part/b.tmp": "",
        },
    )
    make_tree(tmp_path, {".gitignore": "*.py\n"})
    assert paths(tmp_path / "repo" / "part", CODE_RULES) == ["a.py"]


def test_default_ignored_name_can_be_included(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "code", {".hopignore": "!venv/\n", "venv/x": "", "node_modules/y": ""})
    assert paths(root, CODE_RULES) == [".hopignore", "venv/x"]


def test_data_omits_only_hopignore_and_git(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path / "data",
        {".gitignore": "*", ".hopignore": "raw/\n", "raw/x": "", "a.pyc": "", "venv/x": "", ".git/x": ""},
    )
    (root / "empty" / "inner").mkdir(parents=True)
    assert paths(root) == [".gitignore", ".hopignore", "a.pyc", "empty/inner/", "venv/x"]


def test_repositories_are_never_packed(tmp_path: Path) -> None:
    files = {
        ".hopignore": "!.git/\n!.GIT/\n",
        ".git/config": "",
        ".GIT/config": "",
        "a/.git": "gitdir: ../..",
        "a/b.py": "",
        "git~1/x": "",
        ".hg/hgrc": "",
    }
    root = make_tree(tmp_path / "t", files)
    for rules in (CODE_RULES, DATA_RULES, ALL_FILES_RULES):
        assert paths(root, rules) == [".hopignore", "a/b.py"]
    with pytest.raises(SpecError, match="belongs to a repository"):
        pack_tree(root, rules=EXACT_RULES)


def test_bare_repository_is_omitted_from_code_and_refused_as_data(tmp_path: Path) -> None:
    root = make_tree(
        tmp_path / "t",
        {"a.py": "", "x.git/HEAD": "", "x.git/config": "", "x.git/objects/o": "", "x.git/refs/r": ""},
    )
    assert paths(root, CODE_RULES) == ["a.py"]
    for top, rules in ((root, DATA_RULES), (root / "x.git", CODE_RULES)):
        with pytest.raises(SpecError, match="is a git repository") as error:
            pack_tree(top, rules=rules)
        assert error.value.hints


def test_single_file_is_tree_with_one_file(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("1,2\n")
    tree = pack_tree(tmp_path / "train.csv")
    assert [(f.path, f.size) for f in Manifest.decode(tree.encoded).files] == [("train.csv", 4)]
    assert tree.read(digest_of(b"1,2\n")) == b"1,2\n"


def test_large_files_are_chunked_and_modes_retained(tmp_path: Path) -> None:
    data = os.urandom(CHUNK_BYTES) + b"tail"
    root = make_tree(
        tmp_path / "t", {"large": data, "empty": b"", "run.sh": b"#!/bin/sh\n", "exact": data[:CHUNK_BYTES]}
    )
    (root / "run.sh").chmod(0o755)
    tree = pack_tree(root)
    result = {f.path: f for f in Manifest.decode(tree.encoded).files}
    assert result["large"].chunks == (digest_of(data[:CHUNK_BYTES]), digest_of(b"tail"))
    assert result["empty"].chunks == () and result["run.sh"].executable and not result["large"].executable
    assert len(result["exact"].chunks) == 1
    assert tree.read(digest_of(b"tail")) == b"tail"
    assert (tree.files, tree.size_bytes) == (4, 2 * CHUNK_BYTES + 4 + 10)


# -- what cannot be packed -----------------------------------------------------------------------------------


def test_inner_links_are_retained_and_outer_links_refused(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "t", {"a/x": "1", "b/y": "2"})
    (root / "b" / "up").symlink_to("../a/x")
    (root / "whole").symlink_to("a")
    (root / "dangling").symlink_to("nothing")
    (root / "absolute").symlink_to(root / "b" / "y")
    (root / "winding").symlink_to("a/../b/y")
    links = {link.path: link.target for link in Manifest.decode(pack_tree(root).encoded).links}
    assert links == {
        "b/up": "../a/x",
        "whole": "a",
        "dangling": "nothing",
        "absolute": "b/y",
        "winding": "b/y",
    }
    for target in ("../../outside", "/etc/passwd", "a/../../../outside"):
        (root / "b" / "out").unlink(missing_ok=True)
        (root / "b" / "out").symlink_to(target)
        with pytest.raises(SpecError, match="`b/out` leads out") as error:
            pack_tree(root)
        assert ".hopignore" in error.value.hints[0]
        code = pack_tree(root, rules=CODE_RULES)
        assert code.outside_links == (("b/out", os.path.normpath(root / "b" / target)),)
        assert {link.path for link in Manifest.decode(code.encoded).links} == set(links)


def test_code_skips_pipes_and_sockets_like_git(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "code", {"main.py": b"x"})
    os.mkfifo(root / "pipe")
    assert paths(root, CODE_RULES) == ["main.py"]


@pytest.mark.parametrize("rules", [CODE_RULES, DATA_RULES])
def test_ignored_folder_is_not_read(rules: IgnoreRules, tmp_path: Path) -> None:
    root = make_tree(
        tmp_path / "work",
        {"main.py": b"x", "state/home/token": b"secret", "state/homely": b"y", "..odd/file": b"z"},
    )
    (root / "state" / "home" / "out").symlink_to("/etc/passwd")  # would be refused
    (tmp_path / "same").symlink_to(root)

    def packed(root: Path, without: Path) -> list[str]:
        return [
            file.path
            for file in Manifest.decode(pack_tree(root, rules=rules, excluded=without).encoded).files
        ]

    expected = ["..odd/file", "main.py", "state/homely"]
    assert (
        packed(root, root / "state" / "home")
        == packed(tmp_path / "same", root / "state" / "home")
        == expected
    )
    (root / "state" / "home" / "out").unlink()
    assert packed(root, tmp_path / "elsewhere") == [
        "..odd/file",
        "main.py",
        "state/home/token",
        "state/homely",
    ]
    assert packed(root, root / "..odd") == ["main.py", "state/home/token", "state/homely"]


@pytest.mark.parametrize("rules", [CODE_RULES, DATA_RULES, ALL_FILES_RULES])
def test_homes_and_their_secrets_are_omitted(rules: IgnoreRules, tmp_path: Path) -> None:
    files = {
        "server/identity.json": b"k",
        "server/token": b"t",
        "server/cache/x": b"",
        "old/hopyard.db": b"d",
        "client/login.json": b"t",
        "client/cache/x": b"",
    }
    files |= {
        "attempts/r.1/0/spec.json": b"t",
        "attempts/r.1/0/status.json": b"",
        "attempts/r.1/0/streams/stdout": b"",
        "keys/signing-keys.json": b"k",
    }
    root = make_tree(
        tmp_path / "work",
        {"main.py": b"x", "data/identity.json": b"a user's own", "data/token": b"", "web/login.json": b"{}"}
        | files,
    )
    (root / "data" / "token").unlink()
    (root / "part" / "sdk").mkdir(parents=True)
    (root / "part" / "sdk" / "hopyard").symlink_to(Path(hopyard.__file__).parent)
    tree = pack_tree(root, rules=rules, cache=tmp_path / "cache")
    assert [file.path for file in Manifest.decode(tree.encoded).files] == [
        "data/identity.json",
        "main.py",
        "web/login.json",
    ]
    left_out = ("attempts/r.1/0", "client", "keys", "old", "part/sdk/hopyard", "server")
    assert tree.homes == left_out == pack_tree(root, rules=rules, cache=tmp_path / "cache").homes


@pytest.mark.parametrize("rules", [CODE_RULES, DATA_RULES])
def test_only_user_files_of_home_folder_are_packed(rules: IgnoreRules, tmp_path: Path) -> None:
    files = {
        "identity.json": b"k",
        "token": b"t",
        "hopyard.db": b"",
        "hopyard.db-wal": b"",
        ".token.1234": b"t",
        "attempts/r.1/0/token": b"t",
        "cache/x": b"",
    }
    root = make_tree(tmp_path / "home", {"main.py": b"x", "lib/token": b"a user's own"} | files)
    tree = pack_tree(root, rules=rules)
    assert ([file.path for file in Manifest.decode(tree.encoded).files], tree.homes) == (
        ["lib/token", "main.py"],
        (".",),
    )
    with pytest.raises(SpecError, match="belongs to a home of Hopyard"):
        pack_tree(root / "token", rules=rules)
    assert pack_tree(root / "main.py", rules=rules).files == 1


def test_pipes_sockets_and_invalid_names_are_refused_by_name(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "t", {"x": ""})
    os.mkfifo(root / "pipe")
    with pytest.raises(SpecError, match="`pipe` is not a file but a named pipe"):
        pack_tree(root)
    (root / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "sock"))
        with pytest.raises(SpecError, match="`sock` is not a file but a socket"):
            pack_tree(root)
    (root / "sock").unlink()
    for name, why in ((b"bad\xff", "UTF-8"), (b"new\nline", "control"), (b"back\\slash", "backslash")):
        odd = root / os.fsdecode(name)
        odd.touch()
        with pytest.raises(SpecError, match=why) as error:
            pack_tree(root)
        assert error.value.hints and error.value.message.isprintable()
        odd.unlink()


def test_names_with_invisible_characters_are_packed_unchanged(tmp_path: Path) -> None:
    names = sorted(
        [
            "a\u200db",
            "ab",
            "\u200eעברית.txt",
            "soft\xadhyphen",
            "zero\u200bwidth",
            "line\u2028separator",
            "\u202etxt.exe",
        ]
    )
    assert paths(make_tree(tmp_path / "t", dict.fromkeys(names, ""))) == names
    assert len({escape(name) for name in names}) == len(names)  # and listings distinguish them


def test_missing_or_invalid_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        pack_tree(tmp_path / "nothing")
    with pytest.raises(SpecError, match="neither a file nor a folder"):
        pack_tree(Path("/dev/null"))


UNREADABLE = """
import os, sys
from pathlib import Path
from hopyard.datasets.pack import pack_tree
from hopyard.errors import SpecError
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
for root in sys.argv[1:]:
    try:
        pack_tree(Path(root))
    except SpecError as told:
        print(told.message, "|", *told.hints)
"""


def test_an_unreadable_file_or_folder_is_named() -> None:
    # other users cannot enter pytest's own folders, and the check runs as another user
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        top.chmod(0o755)
        one, two = make_tree(top / "one", {"sub/secret": "x"}), make_tree(top / "two", {"shut/x": "x"})
        (one / "sub" / "secret").chmod(0)
        (two / "shut").chmod(0)
        command = [sys.executable, "-c", UNREADABLE, str(one), str(two)]
        result = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60, check=False)
        (two / "shut").chmod(0o755)
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result.stderr
    assert "`sub/secret` may not be read |" in lines[0] and "shut` may not be read |" in lines[1]
    assert all(".hopignore" in line for line in lines)


def test_a_file_that_grows_while_it_is_packed_is_an_error(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "t", {f"f{n:03}": os.urandom(1000) for n in range(20)} | {"log": b"x"})

    class GrowingMeanwhile:
        def begin(self, what: str, total_bytes: int, /) -> None:
            with (root / "log").open("ab") as file:
                file.write(b"more")

        def advance(self, size_bytes: int, /) -> None: ...

    with pytest.raises(SpecError, match="`log` changed while it was packed") as error:
        pack_tree(root, progress=GrowingMeanwhile(), cache=tmp_path / "cache")
    assert error.value.hints
    assert pack_tree(root, cache=tmp_path / "cache").files == 21


def test_constantly_written_file_is_an_error_or_consistent(tmp_path: Path) -> None:
    """A writer in a thread, with many tries: the result is always a content that the file had."""
    root = make_tree(tmp_path / "t", {"counter": b"0" * 5000})
    states, done = {digest_of(b"0" * 5000)}, threading.Event()

    def write() -> None:
        n = 0
        while not done.is_set():
            n += 1
            data = str(n % 10).encode() * 5000
            states.add(digest_of(data))
            with (root / "counter").open("r+b") as file:
                file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            try:
                (file,) = Manifest.decode(pack_tree(root, cache=tmp_path / "cache").encoded).files
            except SpecError:
                continue
            assert file.size == 5000
    finally:
        done.set()
        writer.join()
    (file,) = Manifest.decode(pack_tree(root, cache=tmp_path / "cache").encoded).files
    assert set(file.chunks) <= states


# -- what is remembered --------------------------------------------------------------------------------------


class CountingProgress:
    """Counts the bytes that are hashed."""

    def __init__(self) -> None:
        self.hashed = 0

    def begin(self, what: str, total_bytes: int, /) -> None: ...

    def advance(self, size_bytes: int, /) -> None:
        self.hashed += size_bytes


def pack_and_count(root: Path, cache: Path) -> tuple[int, str]:
    counting = CountingProgress()
    tree = pack_tree(root, cache=cache, progress=counting)
    assert tree.digest == pack_tree(root, progress=NO_PROGRESS).digest
    assert digest_of(tree.encoded) == tree.digest
    return counting.hashed, tree.digest


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    root, cache = (
        make_tree(tmp_path / "t", {"a": "1" * 100, "b": "2" * 200, "d/c": "3" * 300}),
        tmp_path / "cache",
    )
    wait_for_new_timestamps()
    assert pack_and_count(root, cache)[0] == 600
    assert pack_and_count(root, cache)[0] == 0
    (root / "b").write_text("x" * 200)
    wait_for_new_timestamps()
    assert pack_and_count(root, cache)[0] == 200
    assert pack_and_count(root, cache)[0] == 0
    (root / "a").rename(root / "e")
    wait_for_new_timestamps()
    assert pack_and_count(root, cache)[0] == 100
    (root / "b").unlink()
    assert pack_and_count(root, cache)[0] == 0
    (root / "e").chmod(0o755)
    wait_for_new_timestamps()
    assert pack_and_count(root, cache)[1] == pack_tree(root).digest


def test_change_during_packing_is_detected(tmp_path: Path) -> None:
    """A file of equal size that is written directly after packing may have an equal timestamp.
    Such files are never trusted."""
    root, cache = make_tree(tmp_path / "t", {"a": "0" * 10}), tmp_path / "cache"
    for n in range(200):
        text = f"{n:010}"
        (root / "a").write_text(text)
        tree = pack_tree(root, cache=cache)
        (file,) = Manifest.decode(tree.encoded).files
        assert file.chunks == (digest_of(text.encode()),)


@pytest.mark.parametrize("harm", ["cut", "garbage", "flipped", "unwritable"])
def test_damaged_pack_cache_costs_only_time(tmp_path: Path, harm: str) -> None:
    root, cache = make_tree(tmp_path / "t", {"a": "1" * 100, "b": "2" * 200}), tmp_path / "cache"
    wait_for_new_timestamps()
    first = pack_tree(root, cache=cache).digest
    (memory,) = cache.iterdir()
    data = memory.read_bytes()
    if harm == "cut":
        memory.write_bytes(data[: len(data) // 2])
    elif harm == "garbage":
        memory.write_bytes(b"\0" * 100)
    elif harm == "flipped":
        memory.write_bytes(data[:-10] + b"0123456789")
    else:
        memory.unlink()
        cache.rmdir()
        cache.write_text("in the way")
    tree = pack_tree(root, cache=cache)
    assert tree.digest == first and digest_of(tree.encoded) == first
    (root / "a").write_text("3" * 100)
    assert pack_tree(root, cache=cache).digest == pack_tree(root).digest


def test_pack_caches_are_separate_per_tree_and_rules(tmp_path: Path) -> None:
    root, cache = make_tree(tmp_path / "t", {"a.pyc": "1", "b": "2"}), tmp_path / "cache"
    wait_for_new_timestamps()
    assert pack_tree(root, rules=DATA_RULES, cache=cache).files == 2
    assert pack_tree(root, rules=CODE_RULES, cache=cache).files == 1
    assert pack_tree(root / "b", rules=DATA_RULES, cache=cache).files == 1
    assert pack_tree(root, rules=DATA_RULES, cache=cache).files == 2
