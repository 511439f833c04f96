"""`python -m hopyard.run_servers.tensorboard RUN...`: TensorBoard, as `hop tensorboard` runs it.

RUN is the id of a run. The metrics of each run are written as an event file, and the event files of the run
itself are copied; both are updated while TensorBoard shows them. It listens at a Unix socket that only the
server reaches.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopyard.api_client.client import Client
from hopyard.api_client.run_access import find_replica_folder, read_run_access
from hopyard.client.run_files import is_ended
from hopyard.domain.run_port import TENSORBOARD_PORT
from hopyard.errors import HopyardError
from hopyard.run_servers.private_socket import short_socket_path

_INTERVAL_S = 5.0
_STOP_S = 5.0  # for an update that has begun
_FILES_FOLDER = "files"  # below the folder of a run: its own event files


def main(arguments: Sequence[str]) -> int:
    """Serves until the run is stopped."""
    try:
        from tensorboard import program
    except ImportError:
        print(f"error: tensorboard is not installed in {sys.prefix}", file=sys.stderr)
        print("hint: add `tensorboard` to the requirements of the run", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="hopyard-tensorboard-"))
    feed = _Feed(folder, arguments)
    feed.update()
    feed.start()
    # TensorBoard calls it at the end of its own handler
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        board = program.TensorBoard(server_class=_SocketServer)
        settings = ["--load_fast=false", f"--reload_interval={_INTERVAL_S:g}", "--reload_multifile=true"]
        board.configure(["tensorboard", f"--logdir={folder}", "--window_title=Hopyard", *settings])
        return int(board.main())
    finally:
        feed.stop()
        shutil.rmtree(folder, ignore_errors=True)


class _SocketServer:
    """Serves the application of TensorBoard at the Unix socket. The constructor is the one that TensorBoard
    expects."""

    def __init__(self, wsgi_app: Any, flags: Any) -> None:  # noqa: ARG002
        from werkzeug.serving import WSGIRequestHandler, make_server

        class QuietHandler(WSGIRequestHandler):
            def log_request(self, *_: Any) -> None:
                pass

        path = short_socket_path(TENSORBOARD_PORT[0])
        self._server = make_server(f"unix://{path}", 0, wsgi_app, threaded=True, request_handler=QuietHandler)

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def get_url(self) -> str:
        return f"http://localhost:{TENSORBOARD_PORT[1]}/"

    def print_serving_message(self) -> None:
        print("TensorBoard begins", flush=True)


class _Feed:
    """Keeps the folder of TensorBoard up to date. runs: the ids of the shown runs."""

    def __init__(self, folder: Path, runs: Sequence[str]) -> None:
        from hopyard.run_servers.event_mirror import EventMirror
        from hopyard.run_servers.event_writer import MetricEvents

        self._folder, self._waiting = folder, list(runs)
        self._access = read_run_access(find_replica_folder(os.environ) or Path.cwd())
        self._metrics: dict[str, MetricEvents] = {}
        self._mirrors: dict[str, EventMirror] = {}
        self._make_metrics, self._make_mirror = MetricEvents, EventMirror
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Updates in a thread until all shown runs have ended."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the updates."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while self._waiting and not self._stop.wait(_INTERVAL_S):
            self.update()

    def update(self) -> None:
        """Reads what is new. A server that restarts, or a run that was deleted, ends nothing."""
        for run in list(self._waiting):
            try:
                if self._update_run(self._access.client(), run):
                    self._waiting.remove(run)
                    self._metrics.pop(run).close()
            except HopyardError as error:
                print(f"{run}: {error.message}", file=sys.stderr, flush=True)

    def _update_run(self, client: Client, run_id: str) -> bool:
        """Returns whether the run has ended, and all of it is shown."""
        run = client.get_run(run_id)
        folder = self._folder / run["name"]
        metrics = self._metrics.get(run_id)
        if metrics is None:
            metrics = self._metrics[run_id] = self._make_metrics(folder)
            self._mirrors[run_id] = self._make_mirror(folder / _FILES_FOLDER)
        metrics.append(client.iterate_run_metrics(run_id))
        self._mirrors[run_id].update(client, run)
        return is_ended(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
