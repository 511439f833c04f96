"""`hop tensorboard` with the real TensorBoard."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hopyard.api_client.client import Client
from tests.cli.shell import Shell, wait_until

SCRIPT = """
import hopyard as hop
from tensorboardX import SummaryWriter

writer = SummaryWriter("logs")
writer.add_scalar("written", 3.0, 7)
writer.close()
hop.log(logged=0.5, step=1)
hop.log(logged=0.25, step=2)
print("logged", flush=True)
import time
while True:
    time.sleep(1)
"""


def test_tensorboard_shows_metrics_and_event_files(shell: Shell, client: Client, served_home: Path) -> None:
    token = (served_home / "token").read_text().strip()
    shell.write("train.py", SCRIPT)
    run = shell.detach("train.py")
    wait_until(lambda: b"logged" in shell.hop("logs", run).out)
    board = shell.hop("tensorboard", run, "--json").json["run"]
    assert board["spec"]["reads"] == [client.resolve_run(ref=run)["id"]]
    path = client.create_run_port(board["id"], {"port": "tensorboard"})["path"]

    def read(page: str) -> Any:
        connection = HTTPConnection(urlsplit(client.url).netloc, timeout=120)
        connection.request("GET", path + page, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status == 200
        return json.loads(response.read())

    def shown_tags() -> dict[str, set[str]]:
        return {name: set(tags) for name, tags in read("data/plugin/scalars/tags").items()}

    def shown_points() -> list[tuple[int, float]]:
        points = read(f"data/plugin/scalars/scalars?run={run}&tag=logged")
        return [(step, value) for _, step, value in points]

    wait_until(lambda: shown_tags() == {run: {"logged", "written"}, f"{run}/files/logs": {"written"}})
    wait_until(lambda: shown_points() == [(1, 0.5), (2, 0.25)])
    for name in (run, board["name"]):
        assert shell.hop("stop", name).code == 0
    missing = shell.hop("tensorboard", "nothing-like-it")
    assert missing.code == 2
    version = shell.hop("tensorboard", "--python", "3.12", run)  # as for `--requirements`
    assert (version.code, "`3.12` is not the path" in version.stderr_text) == (2, True)
