"""`hop files` of a live run and of ended ones."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.shell import Shell, wait_until

_WRITER = """
import os, sys, time
from pathlib import Path
Path("out/deep").mkdir(parents=True)
Path("out/deep/a.txt").write_text("alpha")
Path("out/b.bin").write_bytes(bytes(70000))
Path("-dash").write_text("dash")
os.symlink("deep/a.txt", "out/link")
os.mkfifo("pipe")
os.link("out/b.bin", "hard.bin")
Path("tool.sh").write_text("#!/bin/sh\\n")
os.chmod("tool.sh", 0o755)
os.utime("tool.sh", (10**12, 10**12))
os.makedirs(b"odd\\xff")
for name in (b"a\\nb", b"100%", ("é" * 127).encode(), b"\\xfe" * 255):
    open(b"odd\\xff/" + name, "wb").write(b"odd " + name)
os.symlink(b"a\\nb", b"odd\\xff/link")
print("written", flush=True)
while not Path(sys.argv[1]).exists():
    with open("grows.log", "a") as file:
        file.write("line\\n")
    time.sleep(0.01)
"""


def test_files_of_a_live_run_and_after_its_end(shell: Shell, tmp_path: Path) -> None:
    shell.write("writer.py", _WRITER)
    shell.write("notes.txt", "code, not written by the run\n")
    end = tmp_path / "end"
    name = shell.hop("run", "--detach", "writer.py", "--", str(end)).text.strip()
    wait_until(lambda: b"written" in shell.hop("logs", name).out)
    wait_until(lambda: "grows.log" in shell.hop("files", name).text)
    live = {file["path"]: file for file in shell.hop("files", name, "--json").json}
    plain = {"-dash", "grows.log", "hard.bin", "out/b.bin", "out/deep/a.txt", "tool.sh"}
    odd = {f"odd%FF/{name}" for name in ("a%0Ab", "100%25", "é" * 127, "%FE" * 255)}
    assert {path for path, file in live.items() if not file["encoded"]} == plain
    assert {path for path, file in live.items() if file["encoded"]} == odd
    assert shell.hop("files", name, "odd%FF/a%0Ab", "-o", "-").out == b"odd a\nb"
    assert live["out/b.bin"]["size_bytes"] == 70000
    assert live["out/b.bin"]["modified_at"]
    assert shell.hop("files", name, "out/deep/a.txt", "-o", "-").out == b"alpha"
    grown = shell.hop("files", name, "grows.log", "-o", "-").out
    assert grown.startswith(b"line\n")
    missing = shell.hop("files", name, "nothing.*")
    assert (missing.code, "it has: -dash, grows.log" in missing.stderr_text) == (2, True)
    end.touch()
    followed = shell.hop("logs", "-f", name)
    assert "12 files, " in followed.stderr_text
    assert "(`pipe`) could not be stored: they are pipes" in followed.stderr_text
    assert f"kept: hop files {name}\n" in followed.stderr_text
    stored = {file["path"]: file for file in shell.hop("files", name, "--json").json}
    assert set(stored) == {*live, "out/link", "odd%FF/link"}
    assert stored["odd%FF/link"]["target"] == "a%0Ab"
    assert stored["out/link"]["target"] == "deep/a.txt"
    listed = shell.hop("files", name)
    assert (listed.code, "odd%FF/link -> a\\nb" in listed.text) == (0, True)
    assert shell.hop("files", name, "out/link", "-o", "-").out == b"alpha"
    assert shell.hop("files", name, "odd%FF/link", "-o", "linked").code == 0
    assert (shell.folder / "linked").read_bytes() == b"odd a\nb"
    assert shell.hop("files", name, "odd%FF/100%25", "-o", "one").code == 0
    assert (shell.folder / "one").read_bytes() == b"odd 100%"
    pulled = shell.hop("pull", name, "pulled", "--files", "--logs", "--json").json
    assert (pulled["run"], pulled["folder"]) == (name, "pulled")
    assert [(part["part"], part["path"], part["files"]) for part in pulled["parts"]] == [
        ("files", "pulled/files", 12),
        ("logs", "pulled/logs", None),
    ]
    assert pulled["parts"][1]["size_bytes"] == len("written\n")
    folder = os.fsencode(shell.folder / "pulled" / "files") + b"/odd\xff/"
    for odd_name in (b"a\nb", b"100%", ("é" * 127).encode(), b"\xfe" * 255):
        with open(folder + odd_name, "rb") as file:
            assert file.read() == b"odd " + odd_name
    assert Path(os.fsdecode(folder + b"link")).readlink() == Path("a\nb")
    assert "kept" not in shell.hop("info", name).text
    assert "; `hop files " in shell.hop("info", name).text


def test_fetch_files_of_an_ended_run(shell: Shell, trained_runs: list[str]) -> None:
    run = trained_runs[0]
    assert shell.hop("files", run).text.splitlines()[1].split()[-1] == "model.txt"
    assert shell.hop("files", run, "model.txt", "-o", "here.txt").text == "here.txt\n"
    assert (shell.folder / "here.txt").read_text() == "0.1"
    refused = shell.hop("files", run, "model.txt", "-o", "here.txt")
    assert (refused.code, refused.stderr_text.splitlines()[0]) == (2, "error: here.txt exists")
    assert shell.hop("files", run, "model.txt", "-o", "here.txt", "--force").code == 0
    assert shell.hop("files", run, "*.txt", "-o", "all").text == "all\n"
    assert [path.name for path in (shell.folder / "all").iterdir()] == ["model.txt"]
    assert shell.hop("files", run, "!*.txt").code == 2


def test_outputs_select_files(shell: Shell) -> None:
    shell.write("pair.py", "open('a.pt', 'w').write('a'); open('b.tmp', 'w').write('b')\n")
    shell.write("hop.yaml", "outputs: ['*.pt']\nroles: [{command: [python, pair.py]}]\n")
    for words in (["--outputs", "!*.tmp", "pair.py"], ["hop.yaml"]):
        result = shell.hop("run", "--json", *words)
        name = result.json["name"]
        assert [file["path"] for file in shell.hop("files", name, "--json").json] == ["a.pt"]
        assert "(`b.tmp`) is not kept" in result.stderr_text


def test_files_of_replicas_with_private_folders_are_all_kept(shell: Shell) -> None:
    shell.write(
        "ranks.py",
        "import os\nrank = os.environ['RANK']\nopen(f'{rank}.txt', 'w').write(rank)\n"
        "open('same.txt', 'w').write(f'of {rank}')\nos.symlink('same.txt', 'link')\n"
        "if rank == '1': open('a\\nb', 'w').write('odd')\n",
    )
    words = ["--replicas", "2", "--cpus", "0.2", "--private-folders", "ranks.py"]
    name = shell.hop("run", "--json", *words).json["name"]
    stored = shell.hop("files", name, "--json").json
    assert [(file["rank"], file["path"], file["encoded"]) for file in stored] == [
        (0, "0.txt", False),
        (1, "1.txt", False),
        (1, "a%0Ab", True),
        (0, "link", False),
        (1, "link", False),
        (0, "same.txt", False),
        (1, "same.txt", False),
    ]
    assert shell.hop("files", name, "a%0Ab", "-o", "-").out == b"odd"
    assert shell.hop("files", name, "-o", "all").code == 0
    assert [(shell.folder / f"all/{rank}/link").read_text() for rank in (0, 1)] == ["of 0", "of 1"]


def test_numbered_folder_of_a_single_replica_is_no_rank(shell: Shell) -> None:
    shell.write("step.py", "import os\nos.mkdir('100')\nopen('100/model.pt', 'w').write('m')\n")
    name = shell.hop("run", "--json", "--private-folders", "step.py").json["name"]
    stored = shell.hop("files", name, "--json").json
    assert [(file["rank"], file["path"]) for file in stored] == [(0, "100/model.pt")]
