"""`python -m hopyard.run_servers.visdom`: Visdom, as `hop visdom` runs it.

It listens at a Unix socket that only the server reaches, and the server checks each request. So Visdom's own
login is off. Its environments are JSON files of the run folder, which survives each attempt and is kept with
the run. It begins with those of the working folder, which come from the last run of `hop visdom`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.domain.run_port import VISDOM_PATH, VISDOM_PORT
from hopyard.private_files import write_atomically
from hopyard.run_servers.private_socket import short_socket_path

_SAVE_INTERVAL_S = 60.0  # after a change
_MAX_REQUEST_BYTES = 1024**3  # that of Visdom's own program
_FORWARDED_PATH = re.compile(rf"{VISDOM_PATH}[\w-]+(?=[/?]|\Z)")


def main(arguments: Sequence[str]) -> int:  # noqa: ARG001
    """Serves until the run is stopped, and saves the environments."""
    try:
        from visdom.server import app as module
    except ImportError as error:
        print(f"error: visdom cannot be imported in {sys.prefix}: {error}", file=sys.stderr)
        print("hint: install `visdom` there, or name another interpreter with `--python`", file=sys.stderr)
        return 1
    from hopyard.run_servers.visdom_script_folder import VisdomScriptFolder

    scripts = VisdomScriptFolder()
    folder = Path(os.environ["HOPYARD_RUN_DIR"])
    if not any(folder.glob("*.json")):
        shutil.copytree(Path.cwd(), folder, dirs_exist_ok=True)
    try:
        module.tornado_settings |= {
            "static_path": str(scripts.folder),
            "template_path": str(scripts.folder),
            "static_handler_class": _file_handler(),
            "autoreload": False,
        }
        asyncio.run(_serve(module, scripts, folder))
    finally:
        scripts.close()
    return 0


async def _serve(module: Any, scripts: Any, folder: Path) -> None:
    from tornado.httpserver import HTTPServer
    from tornado.netutil import bind_unix_socket

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    application = _application(module.Application, folder)
    server = HTTPServer(application, max_buffer_size=_MAX_REQUEST_BYTES)
    server.add_socket(bind_unix_socket(short_socket_path(VISDOM_PORT[0])))
    print("Visdom begins", flush=True)
    scripts.start()
    while not stop.is_set():
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(stop.wait(), _SAVE_INTERVAL_S)
        if application.has_changes:
            application.has_changes = False
            save_environments(application.state, folder)
    server.stop()


def _file_handler() -> Any:
    """Returns the handler of Visdom's static files, as a class."""
    from tornado.web import HTTPError, StaticFileHandler

    class FileHandler(StaticFileHandler):
        """Makes addresses outside of its folder, too: Visdom's page names `../user/style.css` as a static
        file, which Tornado refuses since 6.6. Browsers ask for `/user/style.css`."""

        @classmethod
        def get_version(cls, settings: dict[str, Any], path: str) -> str | None:
            try:
                return super().get_version(settings, path)
            except HTTPError:
                return None

    return FileHandler


def _application(base: Any, folder: Path) -> Any:
    """Returns the application of Visdom. base: its class. folder: of the environments."""

    class VisdomApp(base):  # type: ignore[misc]
        """Takes the path away in front of which the replica of a run has checked its secret."""

        has_changes = False

        def find_handler(self, request: Any, **options: Any) -> Any:
            request.path = _FORWARDED_PATH.sub("", request.path, count=1) or "/"
            request.uri = _FORWARDED_PATH.sub("", request.uri, count=1) or "/"
            self.has_changes = self.has_changes or request.method == "POST"
            return super().find_handler(request, **options)

    # lazily loaded environments would be saved as `null`
    return VisdomApp(port=VISDOM_PORT[1], env_path=str(folder), eager_data_loading=True)


def save_environments(state: dict[str, Any], folder: Path) -> None:
    """Writes each environment as Visdom reads it at its start, whole or not at all."""
    for name, environment in list(state.items()):
        try:
            write_atomically(folder / f"{name}.json", json.dumps(environment).encode())
        except (OSError, ValueError) as error:
            print(f"the environment {name!r} was not saved: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
