"""Notifications of a run, from its script to a webhook, with the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from tests.cli.shell import Shell

SCRIPT = """
import hopyard as hop
hop.log(loss=0.5, step=3)
hop.alert("loss is NaN", title="diverged", level="error")
hop.alert("", level="info")
hop.alert("no such level", level="fatal")
raise SystemExit("no more data")
"""


@pytest.fixture
def webhook() -> Iterator[tuple[str, Queue[dict[str, Any]]]]:
    received: Queue[dict[str, Any]] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_alerts_and_the_end_reach_the_targets_of_a_run(
    shell: Shell, webhook: tuple[str, Queue[dict[str, Any]]]
) -> None:
    url, received = webhook
    shell.write("train.py", SCRIPT)
    run = shell.hop("run", "--detach", "--json", "--on-end", url, "train.py").json
    server = shell.hop("status", "--json").json["url"]
    alert, other, end = (received.get(timeout=60) for _ in range(3))
    assert (other["text"], other["level"]) == ("no such level", "warning")
    assert (alert["event"], alert["title"], alert["text"], alert["level"]) == (
        "alert",
        f"{run['name']}: diverged",
        "loss is NaN",
        "error",
    )
    assert (end["event"], end["fields"]["loss"]) == ("failed", "0.5")
    assert "no more data" in end["text"]
    assert {each["url"] for each in (alert, other, end)} == {f"{server}/runs/{run['id']}"}
    shell.hop("alert", "look at it", "--run", run["name"])
    assert received.get(timeout=60)["text"] == "look at it"
    # a minute of the clock may begin between two of them
    again = [shell.hop("alert", "look at it", "--run", run["name"]) for _ in range(2)]
    refused = [each for each in again if each.code]
    assert refused
    assert all("had this alert within the minute" in each.stderr_text for each in refused)
    text = shell.hop("info", run["name"]).text
    assert "alert: error: diverged: loss is NaN" in text
    assert "/secret" not in text and "notifies" in text
    listed = [(each["kind"], each["text"]) for each in shell.hop("inbox", "--json").json]
    assert {("alert", "loss is NaN"), ("alert", "look at it"), ("end", end["text"])} <= set(listed)
    assert "diverged: loss is NaN" in shell.hop("inbox", "--unread", "--read").text
    assert shell.hop("inbox", "--unread", "--json").json == []
    assert shell.hop("inbox", "--read", "--user", "bob").code == 2
    warnings = shell.hop("logs", run["name"], "--stderr").text
    assert "`fatal` is no level (info, warning, error): it is a warning" in warnings
    assert "hop.alert: it has no text; it is left out" in warnings


def test_target_that_the_server_cannot_notify_is_refused(shell: Shell) -> None:
    shell.write("train.py", "print(1)\n")
    for target, problem in (
        ("nosuch", "the server has no target `nosuch`"),
        ("a@b.org", "the server sends no e-mail"),
        ("end=lab", "`end` is no event of a run"),
    ):
        refused = shell.hop("run", "--on-end", target, "train.py")
        assert (refused.code, problem in refused.stderr_text) == (2, True), refused.stderr_text
