"""The history of a server, simulated on its nodes and on more nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hopyard.api_client.local_server import start_server, stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text(
        "node: {id: box, cpus: 2, memory: 8G, gpus: A100:2, pool: gpus, labels: {zone: a}}\n"
    )
    start_server(home)
    yield shell_in(tmp_path_factory.mktemp("work") / "study", home.root)
    stop_server(home, runs="stop")


def test_history_is_simulated_with_more_nodes(shell: Shell) -> None:
    for number in range(2):
        result = shell.hop(
            "run", "--gpus", "2", "--cpus", "1", "--", sys.executable, "-c", f"print({number})"
        )
        assert result.code == 0, result.stderr_text
    result_ = shell.hop("simulate", "@history", "--policy", "fifo", "--add", "1 x gpus", "--json")
    assert result_.code == 0, result_.stderr_text
    output = result_.json
    assert (output["workload"]["runs"], output["workload"]["not_played"]) == (2, [])
    assert [(cluster["nodes"], cluster["gpus"]) for cluster in output["clusters"]] == [(1, 2), (2, 4)]
    assert [report["ended"] for report in output["reports"]] == [2, 2]
    listed = shell.hop("ps", "-a", "--json")
    file = shell.write("past.json", listed.text)
    again = shell.hop("simulate", file.name, "--cluster", "@nodes", "--policy", "fifo", "--json").json
    assert again["reports"][0]["completion"] == output["reports"][0]["completion"]


def test_history_is_simulated_with_the_current_queue_tree(shell: Shell) -> None:
    """The queue `old` was removed, and a run has ended in it."""
    trees = {
        "old": "queues: {old: {}}\n",
        "vision": "default: vision\nqueues:\n  vision: {maximum: {gpus: 1}}\n  nlp: {}\n",
    }
    for queue, text in trees.items():
        shell.write("team.yaml", text)
        assert shell.hop("queue", "apply", "team.yaml").code == 0
        result = shell.hop(
            "run",
            "--gpus",
            "1",
            "--cpus",
            "0.5",
            "--queue",
            queue,
            "--",
            sys.executable,
            "-c",
            f"print('{queue}')",
        )
        assert result.code == 0, result.stderr_text
    result_ = shell.hop("simulate", "@history", "--json")
    assert result_.code == 0, result_.stderr_text
    assert (
        result_.stderr_text.startswith(
            "no longer in the server's tree of queues, simulated as top-level queues: "
        )
        and "old" in result_.stderr_text
    )
    assert {"old", "vision"} <= {queue["name"] for queue in result_.json["reports"][0]["queues"]}
    shell.write("less.yaml", "default: nlp\nqueues:\n  vision: {maximum: {gpus: 1}}\n  nlp: {}\n")
    late = shell.hop("simulate", "@history", "--queues", "less.yaml", "--queue", "nlp", "--json").json
    assert [queue["name"] for queue in late["reports"][0]["queues"]] == ["nlp"]


def test_skipped_runs_are_named(shell: Shell) -> None:
    """A run cancelled while pending never ran; it has the same name here as in `hop ps`."""
    words = (
        "--gpus",
        "2",
        "--cpus",
        "1",
        "--detach",
        "--json",
        "--",
        sys.executable,
        "-c",
        "import time; time.sleep(600)",
    )
    shell.write("one.yaml", "queues: {one: {}}\n")
    assert shell.hop("queue", "apply", "one.yaml").code == 0
    busy, waits = (shell.hop("run", *words).json["name"] for _ in range(2))
    for name in (waits, busy):
        assert shell.hop("stop", name, "--grace", "1s").code == 0
    shell.hop("logs", "-f", busy)  # until it has ended
    assert shell.hop("info", busy, "--json").json["phase"] == "cancelled"
    result = shell.hop("simulate", "@history", "--policy", "fifo", "--json")
    assert result.code == 0, result.stderr_text
    assert f"  {waits}: it is cancelled, and did not run to an end" in result.stderr_text
    assert waits in [one["run"] for one in result.json["workload"]["not_played"]]
    shell.write("none.yaml", "queues: {none: {}}\ndefault: none\n")
    refused = shell.hop("simulate", "@history", "--queues", "none.yaml")
    assert refused.code == 2
    first = shell.hop("ps", "-a", "--json").json[-1]
    assert (
        f"error: @history: {first['name']}: the queue `{first['spec']['queue']}` is not in the tree of queues"
        in refused.stderr_text
    )
