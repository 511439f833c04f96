from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

from hopyard.api_client.client import Client
from hopyard.client.run_commands import list_run_commands


class OlderServer(BaseHTTPRequestHandler):
    """Answers as a server that has no such path."""

    def do_GET(self) -> None:
        data = json.dumps({"error": {"code": "not_found", "message": f"no such path: {self.path}"}}).encode()
        self.send_response(404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def test_run_of_older_server_has_no_commands() -> None:
    with HTTPServer(("127.0.0.1", 0), OlderServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", "hop_test")
        assert list_run_commands(client, cast("Any", {"id": "a"})) == []
        client.close()
        server.shutdown()
