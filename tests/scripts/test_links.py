"""A folder with links to data outside of it, as on machines with a common data disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.shell import Shell

READER = """
import os, pathlib
for name in ("data", "deep/one.txt", "gone", "secret"):
    print(name, os.readlink(name) if os.path.islink(name) else "absent")
pathlib.Path("result.txt").write_text(pathlib.Path("data/one.txt").read_text())
pathlib.Path("data/made.txt").write_text("made")
"""


def test_links_out_of_the_folder_stay_links(scripts: Shell, tmp_path: Path) -> None:
    data, folder = tmp_path / "disk" / "data", scripts.folder
    data.mkdir(parents=True)
    (data / "one.txt").write_text("one")
    (folder / "deep").mkdir()
    (folder / "data").symlink_to("../disk/data")
    (folder / "deep" / "one.txt").symlink_to(data / "one.txt")
    (folder / "gone").symlink_to("/nothing/is/here")
    (folder / "secret").symlink_to(Path(scripts.environment["HOPYARD_HOME"]) / "token")
    scripts.write("reader.py", READER)
    lines = [f"data {data}", f"deep/one.txt {data}/one.txt", "gone absent", "secret absent"]
    run = scripts.hop("run", "-n", "linked", "reader.py")
    assert run.code == 0 and run.text.splitlines() == lines, run.stderr_text
    assert f"no data is packed: data -> {data}, deep/one.txt -> {data}/one.txt" in run.stderr_text
    assert "`-d NAME=data`" in run.stderr_text
    assert "without a usable target are not packed: gone -> /nothing/is/here, secret ->" in run.stderr_text
    assert (data / "made.txt").read_text() == "made", "the link leads to the data itself"
    assert scripts.hop("files", "linked").text.split()[-1] == "result.txt"
    info = scripts.hop("info", "--json", "linked").json
    assert info["spec"]["environment"]["links"] == {"data": str(data), "deep/one.txt": f"{data}/one.txt"}
    assert f"data -> {data}" in scripts.hop("info", "linked").text

    assert scripts.hop("fork", "linked").text.splitlines() == lines
    scripts.hop("dataset", "push", "disk", str(data))
    placed = scripts.hop("run", "-d", "disk=data", "reader.py")
    assert "data ->" not in placed.stderr_text and f"data {data}" not in placed.text
    shutil.rmtree(data)
    lost = scripts.hop("fork", "linked")
    assert lost.code != 0 and "data absent" in lost.text
    events = scripts.hop("info", "last").text
    assert f"the link `data` is missing in the working folder: this node has no {data}" in events
