"""`hop update`, typed at a real server."""

from __future__ import annotations

from hopyard.api_client.client import Client
from tests.cli.shell import Shell

ROLE = {"command": ["true"], "resources": {"cpu_milli": 10}}


def test_several_runs_are_updated_held_and_moved(shell: Shell, client: Client) -> None:
    assert shell.hop("node", "cordon", "box").code == 0
    (shell.folder / "queues.yaml").write_text(
        "queues: {default: {}, spare: {default_priority: 20, priorities: [0, 30]}}\n"
    )
    assert shell.hop("queue", "apply", "queues.yaml").code == 0
    names = [
        client.post("/runs", {"spec": {"project": "updates", "roles": [ROLE]}})["name"] for _ in range(3)
    ]
    result = shell.hop("update", *names[:2], "--time", "2h", "--note", "look", "--tag", "a=b")
    assert (result.code, result.text) == (0, "")
    assert result.stderr_text == "".join(
        f"{name}  time limit none -> 2 h; note none -> `look`; tag a none -> `b`\n" for name in names[:2]
    )
    (updated,) = shell.hop("update", names[0], "--hold", "--untag", "a", "--name", "kept", "--json").json
    assert (updated["run"]["held_by"], updated["changes"]) == (
        updated["run"]["name"].split("/")[0],
        ["name none -> `kept`", "tag a `b` -> none", "held"],
    )
    assert "held by" in shell.hop("ps", "--project", "updates").text
    assert "release it with `hop update " in shell.hop("why", names[0]).text
    assert "note        look" in shell.hop("info", names[0]).text
    shrunk = shell.hop("update", names[2], "--cpus", "2", "--memory", "1G", "--time", "none")
    assert "CPUs 0.01 -> 2; memory none -> 1 GiB" in shrunk.stderr_text

    (shell.folder / "fewer.yaml").write_text("queues: {spare: {}}\n")
    refused = shell.hop("queue", "apply", "fewer.yaml")
    assert (refused.code, "hop update --from-queue default --queue spare" in refused.stderr_text) == (1, True)
    moved = shell.hop("update", "--from-queue", "default", "--queue", "spare")
    assert moved.stderr_text == "".join(f"{name}  queue default -> spare\n" for name in names)
    assert (
        shell.hop("update", "--from-queue", "default", "--queue", "spare").stderr_text
        == "no run waits in queue default\n"
    )
    assert shell.hop("queue", "apply", "fewer.yaml").code == 0
    (shell.folder / "queues.yaml").write_text("queues: {default: {}, spare: {}}\ndefault: default\n")
    assert shell.hop("queue", "apply", "queues.yaml").code == 0
    assert shell.hop("stop", *names).code == 0
    assert shell.hop("node", "uncordon", "box").code == 0


def test_one_refused_update_does_not_stop_the_others(shell: Shell, client: Client) -> None:
    assert shell.hop("node", "cordon", "box").code == 0
    names = [
        client.post("/runs", {"spec": {"project": "several", "roles": [ROLE], "tags": tags}})["name"]
        for tags in ({"a": "b"}, {}, {"a": "b"})
    ]
    refused = shell.hop("update", *names, names[0], "--untag", "a", "--json")
    assert refused.code == 1
    first, second, third = refused.json
    assert [first["run"]["name"], second["name"], third["run"]["name"]] == names
    assert (second["error"]["code"], "has no tag `a`" in second["error"]["message"]) == ("bad_spec", True)
    assert f"error: {names[1]}: " in refused.stderr_text and "hint: it has none" in refused.stderr_text
    again = shell.hop("update", *names[::-1], "--untag", "a")
    assert (again.code, again.stderr_text.count("error: ")) == (1, 3)
    assert shell.hop("update", names[1], "--untag", "a", "--json").code == 2, (
        "for a single run it is the error itself"
    )
    assert shell.hop("stop", *names, names[0]).stderr_text.count("cancelled") == 3
    assert shell.hop("rm", "-y", *names, names[0]).stderr_text.count("deleted ") == 3
    assert shell.hop("node", "uncordon", "box").code == 0


def test_missing_arguments_are_refused(shell: Shell) -> None:
    for words, what in (
        (("update",), "no run is given"),
        (("update", "1", "--from-queue", "a"), "cannot be combined with runs"),
        (("update", "1"), "no change is given"),
        (("update", "no/such/1", "--hold"), "no/such/1"),
        (("hold", "1"), "hop update RUN"),
        (("update", "1", "--hold", "--release"), "excludes --release"),
        (("update", "--from-queue", "nope", "--hold"), "there is no queue `nope`"),
        (("audit", "--since", "1h", "--until", "2h"), "is empty"),
    ):
        refused = shell.hop(*words)
        assert refused.code != 0 and what in refused.stderr_text, refused
