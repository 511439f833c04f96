"""Machines and pools on the command line, against a real server."""

from __future__ import annotations

from hopyard.cli.terminal.console import format_duration
from tests.cli.shell import Shell, wait_until


def test_list_and_inspect_nodes_and_pools(shell: Shell) -> None:
    (one,) = shell.hop("node", "ls", "--json").json
    assert (one["id"], one["cordoned"], one["extras"], one["used"]["gpu_milli"]) == ("box", False, {}, [])
    head, line = shell.hop("node", "ls").text.splitlines()
    assert head.split() == ["NODE", "POOL", "STATE", "CPU", "MEMORY", "GPU", "MODEL"]
    assert line.split() == ["box", "default", "open", "0/4", "0", "B/8.0", "GiB", "-"]
    head, line = shell.hop("pool", "ls").text.splitlines()
    assert (head.split()[:3], line.split()[:4]) == (["POOL", "NODES", "OPEN"], ["default", "1", "1", "0/4"])
    assert [pool["name"] for pool in shell.hop("pool", "ls", "--json").json] == ["default"]
    assert (
        shell.hop("node", "ls", "--pool", "none").stderr_text
        == "no nodes in pool none; `hop pool ls` lists the pools\n"
    )
    assert "state    open" in shell.hop("node", "info", "box").text
    assert shell.hop("node", "info", "box", "--json").json["runs"] == []


def test_node_is_cordoned_and_uncordoned(shell: Shell) -> None:
    shell.write("wait.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    shell.write("hi.py", "print('hi')\n")
    stays = shell.hop("run", "--detach", "--json", "--no-preempt", "wait.py").json
    assert shell.hop("node", "cordon", "box", "--reason", "dust").stderr_text == "box is cordoned\n"
    assert "state    cordoned: dust" in shell.hop("node", "info", "box").text
    head, line = shell.hop("node", "ls").text.splitlines()
    assert (head.split()[-1], line.split()[-1]) == ("REASON", "dust")
    try:
        waits = shell.hop("run", "--detach", "--json", "hi.py").json
        assert waits["phase"] == "queued"
        result = shell.hop("why", waits["name"]).text.splitlines()
        assert result[result.index("cordoned:") + 1] == "  node box: dust"
        assert "use `hop node uncordon box` to let runs start there" in result[-2]
        assert "CORDONED" in shell.hop("status").text
        drained = shell.hop("node", "drain", "box", "--reason", "new fans")
        assert drained.text == (
            f"{stays['name']}  continues until it ends: it is not preemptible; use --all to evict "
            "it as well\n"
        )
    finally:
        assert shell.hop("node", "uncordon", "box").stderr_text == "box is open\n"
    assert shell.hop("logs", "-f", waits["name"]).out == b"hi\n"
    shell.hop("stop", stays["name"], "--grace", "0s")


def test_preempted_pending_run_shows_the_reason(shell: Shell) -> None:
    shell.write("wait.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run = shell.hop("run", "--detach", "--json", "wait.py").json["name"]
    try:
        wait_until(lambda: b"up" in shell.hop("logs", run).out)
        assert (
            shell.hop("node", "drain", "box", "--reason", "new fans").text
            == f"{run}  is requested to save a checkpoint and end\n"
        )
        wait_until(lambda: shell.hop("info", run, "--json").json["position"] == 1)
        (line,) = [line for line in shell.hop("ps").text.splitlines() if line.startswith(run)]
        assert "  position 1" in line
        assert line.endswith("; preempted")
        ran_s = shell.hop("info", run, "--json").json["served_s"]
        assert shell.hop("info", run).text.count(f"took        {format_duration(ran_s)}\n") == 1
        assert "preemption requested: " in shell.hop("info", run).text
        assert "it has already run, attempt 1: preempted; " in shell.hop("why", run).text
    finally:
        shell.hop("node", "uncordon", "box")
        shell.hop("stop", run, "--grace", "0s")


def test_follower_of_a_preempted_run_sees_the_reason(shell: Shell) -> None:
    lines = (
        "import hopyard as hop, time",
        "for turn in hop.loop(range(200)):",
        "    print(turn, flush=True)",
        "    time.sleep(0.05)",
    )
    shell.write("turns.py", "\n".join(lines) + "\n")
    with shell.terminal("run", "turns.py") as follower:
        follower.expect(b"2\r\n")
        shell.hop("node", "drain", "box")
        shell.hop("node", "uncordon", "box")
        follower.expect(b"attempt 2 starts from the beginning: attempt 1 was preempted\r\n")
        assert follower.wait() == 0


def test_follower_of_a_preempted_run_sees_that_its_own_files_are_kept(shell: Shell) -> None:
    lines = (
        "import pathlib, time",
        "state = pathlib.Path('last.ckpt')",
        "if not state.exists():",
        "    state.write_text('1')",
        "    print('saved', flush=True)",
        "    time.sleep(600)",
        "print('continues', flush=True)",
    )
    shell.write("own.py", "\n".join(lines) + "\n")
    with shell.terminal("run", "own.py") as follower:
        follower.expect(b"saved\r\n")
        shell.hop("node", "drain", "box")
        shell.hop("node", "uncordon", "box")
        follower.expect(b"attempt 2 starts with the files that the run kept: attempt 1 was preempted\r\n")
        follower.expect(b"continues\r\n")
        assert follower.wait() == 0


def test_unknown_and_present_nodes_are_refused(shell: Shell) -> None:
    assert (
        "error: there is no node `bax`\nhint: did you mean `box`?"
        in shell.hop("node", "info", "bax").stderr_text
    )
    assert "a/b` is not a name" in shell.hop("node", "cordon", "a/b").stderr_text
    refused = shell.hop("node", "rm", "box")
    assert refused.code != 0 and "box is still reported" in refused.stderr_text
