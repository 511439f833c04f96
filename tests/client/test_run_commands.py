from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

import pytest

from hopyard.api_client.client import Client
from hopyard.cli.ps import LIVE_PHASES
from hopyard.client.run_commands import list_run_commands
from hopyard.client.run_lookup import fetch_runs
from hopyard.errors import SpecError


def _refusal(status: int, code: str, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": code, "message": message}}


class OlderServer(BaseHTTPRequestHandler):
    """Answers as a server that has neither commands nor paused runs."""

    def do_GET(self) -> None:
        if self.path.endswith("/commands"):
            status, body = _refusal(404, "not_found", f"unknown path {self.path}")
        elif "paused" in self.path:
            status, body = _refusal(422, "bad_spec", "query.phase: no such phase")
        else:
            status, body = 200, {"runs": [{"id": "a", "phase": "running"}], "next": None}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def test_older_server_has_no_commands_and_no_paused_runs() -> None:
    with HTTPServer(("127.0.0.1", 0), OlderServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", "hop_test")
        assert list_run_commands(client, cast("Any", {"id": "a"})) == []
        assert [run["id"] for run in fetch_runs(client, phases=LIVE_PHASES, tags={}, limit=5)] == ["a"]
        with pytest.raises(SpecError, match="no such phase"):
            fetch_runs(client, phases=("paused",), tags={}, limit=5)
        client.close()
        server.shutdown()
