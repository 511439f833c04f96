"""`hop shell`: a run with a shell that stays when its terminal is disconnected."""

from __future__ import annotations

from tests.cli.shell import Shell, wait_until


def test_shell_is_a_run_that_outlives_its_connection(shell: Shell) -> None:
    shell.write("data.txt", "of the folder")
    with shell.terminal("shell", "--cpus", "0.5", "--", "bash", "--norc") as terminal:
        terminal.expect(b"# " if _is_root() else b"$ ")
        terminal.type(b"cat data.txt; echo; kept=42; stty size; echo end=$kept:\r")
        shown = terminal.expect(b"end=42:")
        assert b"of the folder" in shown
        assert b"24 80" in shown
        terminal.type(b"\r~.")
        terminal.expect(b"connect again: hop shell ")
        assert terminal.wait() == 255
    (run,) = shell.hop("ps", "--json").json
    assert (run["spec"]["label"], run["phase"]) == ("shell", "running")
    with shell.terminal("shell", run["name"]) as terminal:
        terminal.expect(b"of the folder")  # what was shown before
        terminal.type(b"echo kept=$kept; exit 5\r")
        terminal.expect(b"kept=42")
        assert terminal.wait() == 5
    wait_until(lambda: shell.hop("info", run["name"], "--json").json["ended_at"] is not None)
    assert shell.hop("info", run["name"], "--json").json["exit"]["code"] == 5
    assert "connected a terminal" in shell.hop("info", run["name"]).text


def test_shell_without_a_connection_ends(shell: Shell) -> None:
    with shell.terminal("shell", "--keep", "1s", "--cpus", "0.5", "--", "sh") as terminal:
        terminal.expect(b"# " if _is_root() else b"$ ")
        (run,) = shell.hop("ps", "--json").json
    wait_until(lambda: shell.hop("info", run["name"], "--json").json["ended_at"] is not None)
    assert b"no terminal was connected" in shell.hop("logs", run["name"]).out
    other = shell.detach("--", "true")
    refused = shell.hop("shell", other)
    assert (refused.code, "hop exec" in refused.stderr_text) == (2, True), refused
    refused = shell.hop("shell", run["name"], "--cpus", "2")
    assert (refused.code, "--cpus: the shell of RUN has" in refused.stderr_text) == (2, True), refused


def _is_root() -> bool:
    import os

    return os.geteuid() == 0
