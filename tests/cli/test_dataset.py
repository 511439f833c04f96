"""`hop dataset` against a real server: input, kills and damage."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.api_client.local_server import start_server, stop_server
from hopyard.config.home import Home
from hopyard.private_files import remove_tree
from tests.cli.shell import HOP, Shell, Terminal
from tests.datasets.folder_transport import corrupt_blob, digest_of, list_tree, make_tree, small_disk


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = Home(tmp_path_factory.mktemp("home"))
    start_server(home)
    yield home.root
    stop_server(home, runs="stop")
    remove_tree(home.trees)


def environment_of(home: Path) -> dict[str, str]:
    hidden = {"HOPYARD_URL", "HOPYARD_TOKEN"}
    return {key: value for key, value in os.environ.items() if key not in hidden} | {
        "HOPYARD_HOME": str(home),
        "COLUMNS": "100",
    }


@pytest.fixture
def shell(home: Path, tmp_path: Path) -> Shell:
    (tmp_path / "work").mkdir()
    return Shell(tmp_path / "work", environment_of(home))


def test_push_inspect_pull_and_remove(shell: Shell) -> None:
    data = make_tree(
        shell.folder / "data", {"a.csv": "1,2\n", "sub/b.csv": "3,4\n", "big": os.urandom(9 << 20)}
    )
    pushed = shell.hop("dataset", "push", "table", "data", "-m", "the first")
    assert pushed.code == 0 and pushed.out == b"", pushed.stderr_text
    assert re.fullmatch(
        r"table version 1: 3 files, 9\.0 MiB, uploaded 9\.0 MiB in .* s\n", pushed.stderr_text
    )
    again = shell.hop("dataset", "push", "table", "data")
    assert again.stderr_text == "table: unchanged, still version 1\n"
    (data / "a.csv").write_text("5,6\n")
    second = shell.hop("dataset", "push", "table", "data", "--json").json
    assert second["created"] and second["version"]["number"] == 2 and second["uploaded_bytes"] < 2000
    listed = shell.hop("dataset", "ls")
    assert re.search(r"^table +2 +3 +9\.0 MiB", listed.text, re.M)
    assert [row["number"] for row in shell.hop("dataset", "versions", "table", "--json").json] == [2, 1]
    assert "the first" in shell.hop("dataset", "versions", "table").text
    about = shell.hop("dataset", "info", "table:1")
    assert re.search(r"^version +1 of 2$", about.text, re.M) and "hop run SCRIPT -d table:1" in about.text
    assert shell.hop("dataset", "info", "table", "--json").json["version"]["number"] == 2
    pulled = shell.hop("dataset", "pull", "table")
    assert pulled.text == "table\n" and list_tree(shell.folder / "table") == list_tree(data)
    assert shell.hop("dataset", "pull", "table:1", "old").code == 0
    assert (shell.folder / "old" / "a.csv").read_text() == "1,2\n"
    clash = shell.hop("dataset", "pull", "table:1", "table")
    assert clash.code == 2 and "already exists" in clash.stderr_text and "--force" in clash.stderr_text
    assert shell.hop("dataset", "pull", "table:1", "table", "--force").code == 0
    folder = Path(shell.hop("dataset", "path", "table").text.strip())
    assert list_tree(folder) == list_tree(data) and shell.hop("dataset", "path", "table").text.strip() == str(
        folder
    )
    refused = shell.hop("dataset", "rm", "table")
    assert refused.code == 2 and "-y" in refused.stderr_text
    files = shell.hop("dataset", "files", "table")
    assert re.search(r"^ *4 B +a\.csv$", files.text, re.M), files.text
    assert shell.hop("dataset", "files", "table", "--contains", "A.C", "--json").json[0]["path"] == "a.csv"
    assert "no file of table" in shell.hop("dataset", "files", "table", "--contains", "zz").stderr_text
    assert "only the first 1;" in shell.hop("dataset", "files", "table", "--limit", "1").stderr_text
    assert shell.hop("dataset", "files", "table", "missing").code == 2
    derived = shell.hop("dataset", "push", "derived", "data/a.csv", "--from", "table", "--json").json
    assert derived["version"]["derived_from"] == "table:2"
    assert re.search(r"^made from +table:2$", shell.hop("dataset", "info", "derived").text, re.M)
    unknown = shell.hop("dataset", "push", "derived", "data", "--from", "table:9")
    assert unknown.code == 2 and "newest is 2" in unknown.stderr_text
    assert shell.hop("dataset", "push", "derived", "data", "--from", "a/b").code == 2
    assert re.fullmatch(
        r"deleted version 1 of table; the next sweep frees about 4 B\n",
        shell.hop("dataset", "rm", "table:1", "-y").stderr_text,
    )
    assert shell.hop("dataset", "rm", "table", "-y").stderr_text.startswith("deleted table with 1 version; ")
    removed = shell.hop("dataset", "info", "table")
    assert removed.code == 2 and removed.stderr_text.startswith("error: ")


def test_push_of_a_single_file(shell: Shell) -> None:
    shell.write("rows.csv", "1\n")
    assert shell.hop("dataset", "push", "rows", "rows.csv").stderr_text.startswith(
        "rows version 1: 1 file, 2 B"
    )
    assert shell.hop("dataset", "pull", "rows", "here").code == 0
    assert (shell.folder / "here" / "rows.csv").read_text() == "1\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("push", "../x", "data"), "is not a name"),
        (("push", "x", "nothing"), "No such file"),
        (("push", "x", "empty"), "holds no files"),
        (("push", "x", "odd"), "leads out"),
        (("pull", "nowhere"), "nowhere"),
        (("pull", "x:zero"), "not a version"),
        (("info", "a/b"), "is not a name"),
        (("rm", "nowhere", "-y"), "nowhere"),
    ],
)
def test_invalid_input_is_refused_with_a_hint(shell: Shell, words: tuple[str, ...], what: str) -> None:
    make_tree(shell.folder / "data", {"x": "x"})
    (shell.folder / "empty").mkdir()
    (shell.folder / "odd").mkdir()
    (shell.folder / "odd" / "link").symlink_to("/etc")
    result = shell.hop("dataset", *words)
    assert result.code == 2 and what in result.stderr_text and "Traceback" not in result.stderr_text
    assert result.stderr_text.startswith("error: ")


def test_concurrent_pushes_of_equal_data_create_one_version(shell: Shell) -> None:
    make_tree(shell.folder / "data", {f"f{n}": os.urandom(20_000) for n in range(200)})
    command = [*HOP, "dataset", "push", "twice", "data", "--json"]
    both = [
        subprocess.Popen(command, cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [json.loads(child.communicate(timeout=60)[0]) for child in both]
    assert [answer["version"]["number"] for answer in answers] == [1, 1]
    assert sorted(answer["created"] for answer in answers) == [False, True]


def stored_blobs(home: Path) -> int:
    """Returns the number of large blobs on the server's disk."""
    return len([path for path in home.glob("blobs/large/*/*") if len(path.name) == 64])


@pytest.mark.parametrize("victim", ["client", "server"])
def test_push_after_a_killed_push_uploads_the_rest(tmp_path: Path, victim: str) -> None:
    home = Home(tmp_path / "home")
    server = start_server(home)
    shell = Shell(tmp_path, environment_of(home.root))
    data = make_tree(tmp_path / "data", {f"f{n:02}": os.urandom(5 << 20) for n in range(24)})
    try:
        push = subprocess.Popen(
            [*HOP, "dataset", "push", "d", "data"],
            cwd=tmp_path,
            env=shell.environment,
            stderr=subprocess.PIPE,
        )
        while push.poll() is None and stored_blobs(home.root) < 4:
            time.sleep(0.001)
        if victim == "client":
            push.send_signal(signal.SIGKILL)
        else:
            os.kill(server.pid, signal.SIGKILL)
        _, talk = push.communicate(timeout=60)
        assert push.returncode != 0 and b"Traceback" not in talk, talk
        if victim == "server":
            assert talk.startswith(b"error: ")
        sent = shell.hop("dataset", "push", "d", "data", "--json")
        assert sent.code == 0, sent.stderr_text
        assert sent.json["version"]["number"] == 1
        assert sent.json["uploaded_bytes"] <= (24 - 4) * (5 << 20) + 100_000, (
            "uploaded blobs are not sent again"
        )
        assert shell.hop("dataset", "pull", "d", "back").code == 0
        assert list_tree(tmp_path / "back") == list_tree(data)
    finally:
        stop_server(home, runs="stop")


def test_damaged_blob_is_reported_and_repaired_by_a_push(shell: Shell, home: Path) -> None:
    precious = b"precious" * 500
    make_tree(shell.folder / "data", {"x": precious, "y": b"other"})
    assert shell.hop("dataset", "push", "mend", "data").code == 0
    corrupt_blob(home / "blobs", precious)
    broken = shell.hop("dataset", "pull", "mend", "out")
    assert broken.code == 1 and "damaged" in broken.stderr_text and "hint: push" in broken.stderr_text
    assert not (shell.folder / "out").exists()
    for _ in range(2):
        verified = shell.hop("doctor", "--verify", "--json")
        (check,) = [check_ for check_ in verified.json if check_["check"] == "blobs"]
        assert (verified.code, check["level"]) == (1, "fail") and digest_of(precious)[:12] in check["text"], (
            "as long as it is missing"
        )
    assert "(repaired: uploaded 3.9 KiB)" in shell.hop("dataset", "push", "mend", "data").stderr_text
    assert [
        finding["level"]
        for finding in shell.hop("doctor", "--verify", "--json").json
        if finding["check"] == "blobs"
    ] == ["ok"]
    assert shell.hop("dataset", "pull", "mend", "out").code == 0
    assert digest_of((shell.folder / "out" / "x").read_bytes()) == digest_of(precious)


def test_full_server_disk_is_reported(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        home = Home(disk / "home")
        start_server(home)
        shell = Shell(tmp_path, environment_of(home.root))
        try:
            make_tree(tmp_path / "large", {f"f{n}": os.urandom(4 << 20) for n in range(10)})
            make_tree(tmp_path / "fits", {"f": os.urandom(1 << 20)})
            full = shell.hop("dataset", "push", "large", "large")
            assert full.code == 1 and "no space left" in full.stderr_text and "hint: " in full.stderr_text
            assert shell.hop("dataset", "ls", "--json").json == []
        finally:
            stop_server(home, runs="stop")


BAR = """
import time
from hopyard.cli.terminal.transfer_bar import TransferBar
with TransferBar() as bar:
    bar.begin("hashing", 10)
    bar.advance(10)
    bar.begin("uploading", 1 << 40)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        bar.advance(1 << 20)
        time.sleep(0.01)
print("done")
"""


def test_slow_transfer_shows_progress(shell: Shell) -> None:
    terminal = Terminal([sys.executable, "-c", BAR], shell.folder, {**shell.environment, "TERM": "xterm"})
    try:
        shown = terminal.expect(b"done")
        assert b"uploading" in shown and b"/s" in shown and b"%" in shown
        assert b"hashing" not in shown, "fast steps are not shown"
        assert terminal.wait() == 0
    finally:
        terminal.close()
    piped = subprocess.run(
        [sys.executable, "-c", BAR], env=shell.environment, capture_output=True, timeout=60, check=True
    )
    assert piped.stderr == b""


def test_growing_file_is_an_error_or_a_complete_version(shell: Shell) -> None:
    """Repeated pushes during writes: a clear error or a complete version, never a partial one."""
    make_tree(shell.folder / "data", {f"f{n:03}": os.urandom(50_000) for n in range(100)} | {"log": b""})
    done = threading.Event()

    def grow() -> None:
        with (shell.folder / "data" / "log").open("ab", buffering=0) as log:
            while not done.is_set():
                log.write(b"x" * 1000)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        result = shell.hop("dataset", "push", "growing", "data")
    finally:
        done.set()
        writer.join()
    assert result.code in (0, 2)
    if result.code == 2:
        assert "`log` changed while it was packed" in result.stderr_text and "hint: " in result.stderr_text
    (shell.folder / "data" / "log").write_bytes(b"short")
    assert shell.hop("dataset", "push", "growing", "data").code == 0
    assert shell.hop("dataset", "pull", "growing", "out").code == 0
    assert list_tree(shell.folder / "out") == list_tree(shell.folder / "data")


def test_description_is_set_shown_and_removed(shell: Shell) -> None:
    make_tree(shell.folder / "data", {"a": "1"})
    assert shell.hop("dataset", "push", "digits", "data").code == 0
    shown = shell.hop("dataset", "describe", "digits")
    assert (shown.code, shown.out) == (0, b"") and "digits has no description" in shown.stderr_text
    (shell.folder / "about.md").write_text("# Digits\n\nof *zip codes*\n")
    assert shell.hop("dataset", "describe", "digits", "-F", "about.md").code == 0
    assert shell.hop("dataset", "describe", "digits").text == "  # Digits\n\n  of *zip codes*\n"
    assert shell.hop("dataset", "info", "digits").text.endswith("\n\n  # Digits\n\n  of *zip codes*\n")
    piped = shell.hop("dataset", "describe", "digits", "-F", "-", "--json", stdin="piped\n").json
    assert (piped["description"], piped["description_revision"]) == ("piped\n", 2)
    (shell.folder / "binary").write_bytes(b"\xff\xfe")
    for words, message in (
        (("-F", "none.md"), "cannot read none.md"),
        (("-F", "binary"), "binary is no text in UTF-8"),
        (("text", "-F", "about.md"), "both given"),
        (("x" * 65537,), "more than 65,536"),
    ):
        refused = shell.hop("dataset", "describe", "digits", *words)
        assert refused.code == 2 and message in refused.stderr_text and "hint:" in refused.stderr_text
    assert shell.hop("dataset", "describe", "digits", "").code == 0
    assert "description" not in shell.hop("dataset", "info", "digits").text
