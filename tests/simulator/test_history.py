"""A server's own past, played on its own machines and on more of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hopyard.config.home import Home
from hopyard.sdk.connect import start_server, stop_server
from tests.cli.conftest import shell_in
from tests.cli.terminal import Shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text("node: {id: box, cpus: 2, memory: 8G, gpus: A100:2, pool: gpus, labels: {zone: a}}\n")
    start_server(home)
    yield shell_in(tmp_path_factory.mktemp("work") / "study", home.root)
    stop_server(home, runs="stop")


def test_history_on_more_machines(shell: Shell) -> None:
    for number in range(2):
        done = shell.hop("run", "--gpus", "2", "--cpus", "1", "--", sys.executable, "-c", f"print({number})")
        assert done.code == 0, done.talk
    told = shell.hop("simulate", "@history", "--policy", "fifo", "--add", "1 x gpus", "--json")
    assert told.code == 0, told.talk
    found = told.json
    assert (found["workload"]["runs"], found["workload"]["not_played"]) == (2, [])
    assert [(cluster["nodes"], cluster["gpus"]) for cluster in found["clusters"]] == [(1, 2), (2, 4)]
    assert [report["ended"] for report in found["reports"]] == [2, 2]
    listed = shell.hop("ps", "-a", "--json")
    file = shell.write("past.json", listed.text)
    again = shell.hop("simulate", file.name, "--cluster", "@nodes", "--policy", "fifo", "--json").json
    assert again["reports"][0]["completion"] == found["reports"][0]["completion"]
