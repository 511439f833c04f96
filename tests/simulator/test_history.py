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


def test_history_is_played_in_the_queues_that_the_server_has_now(shell: Shell) -> None:
    """`old` is gone by now, with a run that ended there."""
    trees = {"old": "queues: {old: {}}\n", "vision": "default: vision\nqueues:\n  vision: {maximum: {gpus: 1}}\n  nlp: {}\n"}
    for queue, text in trees.items():
        shell.write("team.yaml", text)
        assert shell.hop("queue", "apply", "team.yaml").code == 0
        done = shell.hop("run", "--gpus", "1", "--cpus", "0.5", "--queue", queue, "--", sys.executable, "-c", f"print('{queue}')")
        assert done.code == 0, done.talk
    told = shell.hop("simulate", "@history", "--json")
    assert told.code == 0, told.talk
    assert told.talk.startswith("not in the server's tree of queues any more, and played as queues of their own: ") and "old" in told.talk
    assert {"old", "vision"} <= {queue["name"] for queue in told.json["reports"][0]["queues"]}
    shell.write("less.yaml", "default: nlp\nqueues:\n  vision: {maximum: {gpus: 1}}\n  nlp: {}\n")
    late = shell.hop("simulate", "@history", "--queues", "less.yaml", "--queue", "nlp", "--json").json
    assert [queue["name"] for queue in late["reports"][0]["queues"]] == ["nlp"]
