"""Commands and scripts inside a run act with the token of the run, never with the token of a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.private_files import remove_tree
from tests.faults.server_home import ServerHome

ASKS = """
import json, os, subprocess, sys
from hopyard.config.home import Home
from hopyard.errors import HopyardError
from hopyard.api_client.local_server import connect, start_server

told = {"variables": dict(os.environ), "token": connect().token, "home": str(Home.default().root)}
own = os.environ["HOPYARD_RUN"]
for words in (["ps"], ["info", "--json", own], ["logs", own], ["status"], ["user", "ls"], ["up"],
              ["down", "--stop-runs"]):
    done = subprocess.run([sys.executable, "-m", "hopyard.cli", *words], capture_output=True, text=True)
    told[words[0]] = [done.returncode, done.stdout, done.stderr]
try:
    start_server(Home.default())
except HopyardError as refused:
    told["start"] = refused.message
print(json.dumps(told))
"""


@pytest.fixture
def default_home(tmp_path: Path) -> Iterator[ServerHome]:
    """A home at the default location, which is found also without a variable."""
    home = ServerHome(tmp_path, home=tmp_path / ".hopyard")
    home.environment["HOME"] = str(tmp_path)
    try:
        yield home
    finally:
        home.end()
        remove_tree(home.home.trees)


def test_commands_inside_run_use_run_token_and_never_owner_token(default_home: ServerHome) -> None:
    default_home.write("asks.py", ASKS)
    run = default_home.wait_for_phase(default_home.run_detached("asks.py"), "succeeded", "failed")
    output = json.loads(default_home.log(run).splitlines()[-1])
    owners = default_home.home.read_token()
    assert owners and owners not in json.dumps(output) and "HOPYARD_HOME" not in output["variables"]
    assert output["token"].startswith("hopr_") and output["home"] == str(default_home.replica(run) / "home")
    assert output["info"][0] == 0 and json.loads(output["info"][1])["id"] == run["id"], output["info"]
    assert output["logs"][0] == 0, output["logs"]
    for word in ("ps", "status", "user"):
        code, _, talk = output[word]
        assert code != 0 and "the token of a run" in talk and "hint: " in talk and "HOPYARD_TOKEN" in talk, (
            output[word]
        )
    for word in ("up", "down"):
        assert output[word][0] != 0 and "which is not allowed inside a run" in output[word][2], output[word]
    assert "a run cannot start one" in output["start"]
    assert not (default_home.replica(run) / "home").exists(), "nothing of these makes a home"
