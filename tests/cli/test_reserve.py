"""`hop reserve`, as people type it."""

from __future__ import annotations

from datetime import datetime

from tests.cli.shell import Shell

IN_2099 = ("--from", "2099-06-01 09:00", "--for", "4h")


def test_node_is_reserved_listed_and_cancelled(shell: Shell) -> None:
    result = shell.hop("reserve", "exam", *IN_2099, "--nodes", "box", "--user", "alice", "--every", "week")
    refused = (2, "error: --from: it begins more than five years ahead")
    assert (result.code, result.stderr_text.splitlines()[0]) == refused
    result = shell.hop(
        "reserve",
        "exam",
        "--from",
        "+26h",
        "--for",
        "4h",
        "--nodes",
        "box",
        "--user",
        "alice",
        "--every",
        "week",
    )
    assert result.code == 0 and ", every week, box, for alice" in result.stderr_text
    assert "warning: there is no user `alice` yet; add it with `hop user add alice`" in result.stderr_text
    head, row = shell.hop("reserve", "ls").text.splitlines()
    assert head.split() == ["NAME", "WHEN", "REPEATS", "FOR", "WHAT"]
    assert row.split()[0] == "exam" and row.split()[-6:] == ["for", "4h", "every", "week", "alice", "box"]
    lines = shell.hop("reserve", "info", "exam").text.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "when", "repeats", "for", "what", "made"]
    (listed,) = shell.hop("reserve", "ls", "--json").json
    length = datetime.fromisoformat(listed["end_at"]) - datetime.fromisoformat(listed["start_at"])
    assert (listed["name"], listed["nodes"], length.total_seconds(), listed["every_s"]) == (
        "exam",
        ["box"],
        4 * 3600,
        7 * 86400,
    )
    meets = shell.hop(
        "reserve", "add", "other", "--from", "+27h", "--for", "1h", "--cpus", "1", "--queue", "default"
    )
    assert meets.code != 0 and "exam" in meets.stderr_text and "hint: " in meets.stderr_text
    missing = shell.hop("reserve", "rm", "exam", "nothing")
    assert missing.code == 2 and "hint: nothing was removed" in missing.stderr_text
    assert shell.hop("reserve", "rm", "exam").stderr_text == "removed exam\n"
    assert shell.hop("reserve", "ls").stderr_text.startswith("no reservations")


def test_nodes_pools_and_queues_show_reservations(shell: Shell) -> None:
    assert shell.hop("reserve", "lab", "--for", "1h", "--cpus", "1", "-q", "default").code == 0
    assert (
        shell.hop(
            "reserve", "exam", "--from", "+30h", "--for", "1h", "--nodes", "box", "--user", "alice"
        ).code
        == 0
    )
    try:
        head, node = shell.hop("node", "ls").text.splitlines()
        assert (head.split()[-1], node.split()[-1]) == ("RESERVED", "lab")
        head, pool = shell.hop("pool", "ls").text.splitlines()
        assert (head.split()[3], pool.split()[3]) == ("RESERVED", "1")
        now, later = shell.hop("node", "info", "box").text.splitlines()[-2:]
        assert now.startswith("reserved lab  now, until ") and now.endswith(", for queue default")
        assert later.startswith("         exam  ") and later.endswith(" for 1h, for alice")
        assert "reserved    lab  now, until " in shell.hop("queue", "info", "default").text
        assert "exam" not in shell.hop("queue", "info", "default").text
    finally:
        shell.hop("reserve", "rm", "lab", "exam")


def test_dry_run_reserves_nothing(shell: Shell) -> None:
    words = ("reserve", "exam", "--from", "+30h", "--for", "1h", "--nodes", "box", "--user", "alice")
    result = shell.hop(*words, "--dry-run")
    assert (result.code, result.out) == (0, b"")
    warning, would, note = result.stderr_text.splitlines()
    assert warning.startswith("warning: there is no user `alice`") and would.startswith(
        "would reserve exam: "
    )
    assert note == "dry run: nothing was reserved"
    assert shell.hop(*words, "--dry-run", "--json").json["applied"] is False
    assert shell.hop("reserve", "ls", "--json").json == []
    refused = shell.hop(
        "reserve", "exam", "--from", "+30h", "--for", "1h", "--cpus", "99", "--user", "alice", "--dry-run"
    )
    assert refused.code != 0 and "it cannot be granted" in refused.stderr_text


def test_pieces_are_shown_with_their_count(shell: Shell) -> None:
    result = shell.hop(
        "reserve",
        "class",
        "--from",
        "+30h",
        "--to",
        "+32h",
        "--cpus",
        "1",
        "--memory",
        "512M",
        "--count",
        "2",
        "-q",
        "default",
    )
    assert result.code == 0 and "2 x 1 CPU, 512M memory on box, for queue default" in result.stderr_text
    too_much = shell.hop(
        "reserve", "big", "--from", "+30h", "--for", "2h", "--gpus", "A100:8", "-q", "default"
    )
    assert (
        too_much.code != 0
        and (
            "one piece needs 8 A100 GPUs and 8 CPUs on one node; the only node, box, has no GPU (8 too "
            "few), 4 CPUs"
        )
        in too_much.stderr_text
    )
    many = shell.hop(
        "reserve", "big", "--from", "+30h", "--for", "2h", "--cpus", "1", "--count", "999", "-q", "default"
    )
    assert many.code != 0 and "of the 999 pieces of 1 CPU each" in many.stderr_text
    twice = shell.hop(
        "reserve", "big", "--from", "+30h", "--for", "2h", "--nodes", "box", "--pool", "nope", "-q", "default"
    )
    assert twice.code == 2 and "--pool: --nodes already names the nodes" in twice.stderr_text
    assert shell.hop("reserve", "rm", "class", "--json").json[0]["pieces"] == [2]


def test_invalid_options_are_refused_without_a_server(shell: Shell) -> None:
    cases = {
        "--for: the duration is missing": ("x", "--nodes", "box", "--user", "a"),
        "--for: --to already gives the end": (
            "x",
            "--nodes",
            "box",
            "--user",
            "a",
            "--for",
            "1h",
            "--to",
            "+2h",
        ),
        "--nodes: no resources are given": ("x", "--user", "a", "--for", "1h"),
        "--nodes: are reserved as a whole": (
            "x",
            "--user",
            "a",
            "--for",
            "1h",
            "--nodes",
            "box",
            "--gpus",
            "1",
        ),
        "--user: the owner is missing": ("x", "--for", "1h", "--nodes", "box"),
        "--from: `yesterday`": ("x", "--from", "yesterday", "--for", "1h", "--nodes", "box", "--user", "a"),
        "--for: `long`": ("x", "--for", "long", "--nodes", "box", "--user", "a"),
        "--every: `fortnight`": ("x", "--for", "1h", "--nodes", "box", "--user", "a", "--every", "fortnight"),
        "NAME: `../x`": ("../x", "--for", "1h", "--nodes", "box", "--user", "a"),
    }
    for begins, words in cases.items():
        result = shell.hop("reserve", *words)
        assert result.code == 2 and result.stderr_text.startswith(f"error: {begins}"), (
            words,
            result.stderr_text,
        )
        assert "hint: " in result.stderr_text
    assert shell.hop("reserve", "add", "ls", "--for", "1h", "--nodes", "box", "--user", "a").code == 2


def test_start_beyond_the_calendar_is_refused(shell: Shell) -> None:
    result = shell.hop(
        "reserve", "exam", "--from", "9999-12-31 23:00", "--for", "2h", "--gpus", "1", "--user", "ada"
    )
    assert result.code == 2
    assert "--from: it begins more than five years ahead" in result.stderr_text


def test_unknown_names_give_suggestions(shell: Shell) -> None:
    result = shell.hop("reserve", "x", "--from", "+1h", "--for", "1h", "--nodes", "bax", "--user", "a")
    assert (
        result.code == 2
        and "there is no node `bax`" in result.stderr_text
        and "did you mean `box`?" in result.stderr_text
    )
    past = shell.hop(
        "reserve", "x", "--from", "2020-01-01 09:00", "--for", "1h", "--nodes", "box", "--user", "a"
    )
    assert past.code == 2 and past.stderr_text.startswith("error: --from: 2020-01-01")


def test_server_refusal_names_the_option(shell: Shell) -> None:
    """The error names the option, not the field of the request."""
    cases = {
        "--to: it ends before it begins": ("--from", "+2h", "--to", "+1h", "--nodes", "box"),
        "--for: it is shorter than": ("--from", "+2h", "--for", "1s", "--nodes", "box"),
        "--every: it begins again after 1d": (
            "--from",
            "+2h",
            "--every",
            "day",
            "--for",
            "25h",
            "--nodes",
            "box",
        ),
        "--until: it does not repeat": ("--from", "+2h", "--for", "1h", "--until", "+9h", "--nodes", "box"),
        "--pool: there is no pool `nope`": ("--from", "+2h", "--for", "1h", "--cpus", "1", "--pool", "nope"),
        "--nodes: there is no node `bax`": ("--from", "+2h", "--for", "1h", "--nodes", "bax"),
    }
    for begins, words in cases.items():
        result = shell.hop("reserve", "x", *words, "--user", "a")
        assert result.code == 2 and result.stderr_text.startswith(f"error: {begins}"), (
            words,
            result.stderr_text,
        )
