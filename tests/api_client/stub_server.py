"""A stub of `hopyard.app` to test finding and starting a server: the same files, lock and health check."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from hopyard.config.home import Home
from hopyard.testing.home_server import HomeServer

URL = "http://127.0.0.1:8"  # written to the files; nothing connects to it


class StubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond(
            {
                "status": "ok",
                "version": "0.1.0",
                "pid": os.getpid(),
                "started_at": "2025-01-01T00:00:00Z",
                "url": URL,
            }
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/runs"):
            refusal = {"code": "bad_spec", "message": "params.0: there is no field `count`", "hints": ["x"]}
            self._respond({"error": refusal}, status=422)
        else:
            self._respond({})
        if self.path.endswith("/shutdown"):
            threading.Thread(target=self.server.shutdown).start()

    def _respond(self, body: object, *, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


def main() -> int:
    home = Path(sys.argv[sys.argv.index("--home") + 1])
    with open(home / "starts", "a") as starts:
        starts.write(f"{os.getpid()}\n")
    if (home / "broken").exists():
        print("Traceback: the disk is on fire", flush=True)
        return 3
    lock = os.open(home / "server.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another server has this home", flush=True)
        return 0  # like hopyard.app
    time.sleep(float(os.environ.get("SLOW_START", "0")))
    server = HomeServer(Home(home), StubHandler)
    (home / "token").write_text("hop_test")
    scratch = home / f".server.{os.getpid()}"
    scratch.write_text(
        json.dumps({"pid": os.getpid(), "url": URL, "started_at": "2025-01-01T00:00:00Z", "version": "0.1.0"})
    )
    scratch.replace(home / "server.json")
    server.serve_forever(poll_interval=0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
