"""`hop doctor --node` makes the checks of replicas by hand."""

from __future__ import annotations

from pathlib import Path

from hopyard.config.home import Home
from tests.cli.conftest import shell_in


def test_checks_of_declared_nodes_and_their_exit_code(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    home.settings_file.write_text("nodes: [{id: a, cpus: 1}, {id: b, cpus: 1}]\n")
    shell = shell_in(tmp_path / "work", home.root)
    found = shell.hop("doctor", "--node", "b", "--json").json
    assert {(each["node"], each["level"]) for each in found} == {("b", "ok")}
    assert {"disk", "clock", "cache", "gpu", "environment", "dataset", "pairs"} == {
        each["check"] for each in found
    }
    home.trees.parent.mkdir(exist_ok=True)
    home.trees.write_text("not a folder")
    result = shell.hop("doctor", "--node")
    assert result.code == 1
    assert f"{home.trees} is not a folder; remove it" in result.text
    unknown = shell.hop("doctor", "--node", "c")
    assert unknown.code == 2
    assert "error: `c` is no node of this machine\nhint: its nodes are a, b\n" in unknown.stderr_text
