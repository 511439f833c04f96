"""`hop report`, as people type it."""

from __future__ import annotations

from pathlib import Path

from hopyard.api_client.local_server import connect
from hopyard.config.home import Home
from tests.cli.shell import Shell


def test_report_is_listed_shown_exported_and_removed(shell: Shell) -> None:
    assert "hop ui" in shell.hop("report", "ls").stderr_text
    run = shell.hop("run", "--json", "--", "true").json["id"]
    blocks = [{"type": "text", "text": "# Head\n\n$x^2$"}, {"type": "table", "runs": [run], "title": "All"}]
    client = connect(start=False, home=Home(Path(shell.environment["HOPYARD_HOME"])))
    made = client.create_report({"title": "Loss", "blocks": blocks})  # type: ignore[typeddict-item]
    head, row = shell.hop("report", "ls", "--search", "loss").text.splitlines()
    assert (head.split(), row.split()[0], row.split()[-1]) == (
        ["ID", "USER", "ACCESS", "CHANGED", "TITLE"],
        made["id"],
        "Loss",
    )
    assert shell.hop("report", "show", made["id"], "--json").json["blocks"] == made["blocks"]
    lines = shell.hop("report", "show", made["id"]).text.splitlines()
    assert lines[0] == "Loss" and lines[3:] == [
        "  # Head",
        "",
        "  $x^2$",
        "",
        "[table] All: 1 run; nothing chosen",
    ]
    file = shell.folder / "out.html"
    assert shell.hop("report", "export", made["id"], "-o", "out.html").text == "out.html\n"
    assert "<msup>" in file.read_text() and "<script" not in file.read_text()
    refused = shell.hop("report", "export", made["id"], "-o", "out.html")
    assert refused.code == 2 and "--force" in refused.stderr_text
    assert shell.hop("report", "export", made["id"], "-o", "out.html", "--force").code == 0
    assert "<msup>" in shell.hop("report", "export", made["id"], "-o", "-").text
    assert shell.hop("report", "rm", made["id"], made["id"], "--json").json == [{"id": made["id"]}]
    gone = shell.hop("report", "show", made["id"])
    assert gone.code == 2 and "hop report ls" in gone.stderr_text


def test_wrong_id_is_refused_with_a_hint(shell: Shell) -> None:
    for words in (("show", "../x"), ("export", "x"), ("rm", "x")):
        result = shell.hop("report", *words)
        assert result.code == 2 and "hint: list the ids with `hop report ls`" in result.stderr_text
