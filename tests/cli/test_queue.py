"""`hop queue`: a tree is applied completely or not at all, shown, and exported as a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hopyard.api_client.client import Client
from hopyard.cli.queue import change_line
from hopyard.cli.queue_table import amounts_text, queue_lines, queue_table, utilisation_bar
from tests.cli.shell import Shell, assert_snapshot, normalize

TREE = """
default: vision
queues:
  research:
    guarantee: {cpus: 2}
    queues:
      vision: {guarantee: {cpus: 1}, maximum: {cpus: 2}, priorities: [0, 60], default_priority: 20}
      nlp: {submitters: [carol], admins: [dora], weight: 2}
  prod: {user_limit: {cpus: 2, memory: 4G}}
"""
PLAIN = "queues: {default: {}}\n"


@pytest.fixture
def declared_shell(shell: Shell) -> Iterator[Shell]:
    """A shell with a server that has the tree above; afterwards the server has one queue again."""
    shell.write("tree.yaml", TREE)
    shell.write("plain.yaml", PLAIN)
    result = shell.hop("queue", "apply", "tree.yaml")
    assert result.code == 0, result.stderr_text
    yield shell
    result = shell.hop("queue", "apply", "plain.yaml")
    assert result.code == 0, result.stderr_text


def test_apply_shows_and_then_makes_changes(shell: Shell) -> None:
    shell.write("tree.yaml", "half_life: 1d\nqueues: {default: {weight: 2}, big: {guarantee: {cpus: 99}}}\n")
    shell.write("plain.yaml", PLAIN + "half_life: 7d\n")
    changes = "~ half_life: 7d → 1d\n+ big\n~ default: weight: 1 → 2\n"
    warning = "warning: the queues are guaranteed 99 cpus together, and the nodes have 4\n"
    tried = shell.hop("queue", "apply", "--dry-run", "tree.yaml")
    assert (tried.code, tried.text, tried.stderr_text) == (
        0,
        changes,
        warning + "dry run: nothing was changed\n",
    )
    result = shell.hop("queue", "apply", "tree.yaml")
    assert (result.code, result.text, result.stderr_text) == (0, changes, warning + "applied 3 changes\n")
    assert shell.hop("queue", "apply", "tree.yaml").stderr_text.endswith("no changes\n")
    assert [c["kind"] for c in shell.hop("queue", "apply", "--json", "plain.yaml").json["changes"]] == [
        "changed",
        "removed",
        "changed",
    ]


def test_invalid_file_changes_nothing_and_names_the_path(declared_shell: Shell) -> None:
    before = declared_shell.hop("queue", "export").text
    declared_shell.write("bad.yaml", TREE.replace("weight: 2", "weight: 0"))
    result = declared_shell.hop("queue", "apply", "bad.yaml")
    assert (result.code, result.stderr_text.splitlines()[0]) == (
        2,
        (
            "error: bad.yaml: queues.research.queues.nlp.weight: `0` is not a number above 0, from "
            "0.000001 to 1000000"
        ),
    )
    assert result.stderr_text.splitlines()[1].startswith("hint: ")
    assert declared_shell.hop("queue", "apply", "none.yaml").stderr_text.startswith(
        "error: there is no file none.yaml"
    )
    assert declared_shell.hop("queue", "export").text == before


def test_exported_tree_can_be_applied(declared_shell: Shell) -> None:
    text = declared_shell.hop("queue", "export").text
    declared_shell.write("again.yaml", text)
    assert declared_shell.hop("queue", "apply", "again.yaml").stderr_text == "no changes\n"
    assert declared_shell.hop("queue", "export", "--json").json["queues"]["prod"] == {
        "user_limit": {"cpus": 2, "memory": "4G"}
    }


def test_tree_is_read_from_stdin(declared_shell: Shell) -> None:
    assert (
        declared_shell.hop(
            "queue", "apply", "-", stdin=declared_shell.hop("queue", "export").text
        ).stderr_text
        == "no changes\n"
    )
    result = declared_shell.hop("queue", "apply", "-", stdin=TREE.replace("weight: 2", "weight: 3"))
    assert (result.code, result.text) == (0, "~ nlp: weight: 2 → 3\n")
    result = declared_shell.hop("queue", "apply", "-", stdin="queues: {a: {wait: 2}}")
    assert result.code == 2 and result.stderr_text.startswith(
        "error: <stdin>: queues.a: there is no key `wait`"
    )
    result = declared_shell.hop("queue", "apply", "-")
    assert result.code == 2 and result.stderr_text.startswith("error: <stdin>")


def test_ls_and_info(declared_shell: Shell, client: Client) -> None:
    assert_snapshot("queue_ls.txt", declared_shell.hop("queue", "ls").text)
    assert [queue["name"] for queue in declared_shell.hop("queue", "ls", "--json").json["queues"]] == [
        "prod",
        "research",
        "nlp",
        "vision",
    ]
    owner = client.get("/queues")["owner"]
    assert_snapshot("queue_info.txt", declared_shell.hop("queue", "info", "nlp").text.replace(owner, "OWNER"))
    assert declared_shell.hop("queue", "info", "nlp", "--json").json["submitters"] == ["carol"]
    missing = declared_shell.hop("queue", "info", "visoin")
    assert (missing.code, missing.stderr_text) == (
        2,
        "error: there is no queue `visoin`\nhint: did you mean `vision`?\n",
    )


def test_run_uses_the_default_queue_and_its_usage_is_shown(declared_shell: Shell) -> None:
    declared_shell.write("wait.py", "import time\ntime.sleep(600)\n")
    first = declared_shell.detach("--cpus", "2", "wait.py")
    second = declared_shell.detach("wait.py")
    try:
        assert declared_shell.hop("info", first, "--json").json["spec"]["queue"] == "vision"
        vision = declared_shell.hop("queue", "info", "vision", "--json").json
        assert (vision["running"], vision["used"]["cpu"], vision["borrowed"]) == (1, 2000, {"cpu": 1000})
        assert "1 running, 1 waiting" in normalize(declared_shell.hop("queue", "info", "vision").text)
        refused = declared_shell.hop("queue", "apply", "plain.yaml")
        assert refused.code == 1
        assert f"vision (1): {second}" in refused.stderr_text
    finally:
        declared_shell.hop("stop", "--grace", "1s", second, first)
        declared_shell.hop("logs", "-f", first)


def test_text_of_changes_amounts_and_bars() -> None:
    assert change_line({"kind": "added", "queue": "a", "detail": "below b"}) == "+ a below b"
    assert change_line({"kind": "removed", "queue": "a", "detail": ""}) == "- a"
    assert (
        amounts_text({"cpu": 500, "gpu:a100": 2000, "gpu": 4000, "fpga": 2, "memory": 2**30})
        == "gpus 4, extras.fpga 2, gpus.a100 2, cpus 0.5, memory 1G"
    )
    assert amounts_text({}) == "-"
    assert [utilisation_bar(share) for share in (0, 0.5, 1, 1.5)] == [
        "..........",
        "#####.....",
        "##########",
        "##########",
    ]


def test_removed_queue_is_marked() -> None:
    row = {
        "name": "old",
        "parent": None,
        "depth": 0,
        "declared": False,
        "guarantee": {},
        "maximum": {},
        "borrow_limit": {},
        "lend_limit": {},
        "user_limit": {},
        "used": {"gpu": 1000},
        "share": 0.25,
        "borrowed": {"gpu": 1000},
        "lent": {},
        "running": 1,
        "waiting": 0,
        "weight": 1.0,
        "priorities": [0, 50],
        "user_priorities": {},
        "default_priority": 50,
        "reclaims": True,
        "preempts_lower": True,
        "time_slices": False,
        "no_preempt": True,
        "submitters": [],
        "admins": [],
    }
    assert any(
        "old (removed)" in line and "gpus 1" in line
        for line in queue_table({"queues": [row], "default": "a"})
    )
    assert (
        "old (removed: its runs continue, no run starts)"
        in queue_lines(row, half_life_s=60, owner="alice")[0]
    )
