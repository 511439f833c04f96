"""More runs than a table shows."""

from __future__ import annotations

from hopyard.api_client.client import Client
from tests.cli.shell import Shell

MANY = 55


def test_table_is_limited_and_json_is_complete(shell: Shell, client: Client) -> None:
    assert shell.hop("node", "cordon", "box").code == 0
    role = {"command": ["true"], "resources": {"cpu_milli": 10}}
    for number in range(MANY):
        client.post("/runs", {"spec": {"project": "many", "roles": [role], "label": f"run-{number}"}})
    shown = shell.hop("ps", "--project", "many")
    assert (len(shown.text.splitlines()), shown.stderr_text) == (
        51,
        "there are more than the newest 50 shown here; use --limit N to show N\n",
    )
    assert len(shell.hop("ps", "--project", "many", "--json").json) == MANY
    assert len(shell.hop("ps", "--project", "many", "--json", "--limit", "3").json) == 3
    few = shell.hop("ps", "--project", "many", "--limit", "2")
    assert (len(few.text.splitlines()), few.stderr_text) == (3, "")
    result = [run["name"] for run in shell.hop("ps", "--project", "many", "--json").json]
    assert shell.hop("stop", *result).code == 0
    assert shell.hop("node", "uncordon", "box").code == 0
