"""`python -m hopyard.run_servers.notebook [FILE]`: JupyterLab, as `hop notebook` runs it.

It listens at a Unix socket that only the server reaches, and the server checks each request. So Jupyter's own
token and password are off. Its kernels use Unix sockets in a private folder as well, since Jupyter's channel
for outputs has no access control.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopyard.domain.run_port import NOTEBOOK_PORT
from hopyard.run_servers.private_socket import short_socket_path

_MAX_SOCKET_PATH = 107
_KERNEL_FILE_LENGTH = len("/kernel-00000000-0000-0000-0000-000000000000-ipc-0")


def main(arguments: Sequence[str]) -> int:
    """Serves until the run is stopped."""
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:
        print(f"error: jupyterlab is not installed in {sys.prefix}", file=sys.stderr)
        print("hint: add `jupyterlab` to the requirements of the run", file=sys.stderr)
        return 1
    from traitlets.config import Config

    runtime = tempfile.mkdtemp(prefix="hopyard-lab-")
    os.environ["JUPYTER_RUNTIME_DIR"] = runtime
    print("JupyterLab begins; the files that you save in it are kept with this run", flush=True)
    try:
        # on the command line, because it counts more than the user's own files of settings
        LabApp.launch_instance(_options(runtime, arguments), config=Config())
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
    return 0


def _options(runtime: str, arguments: Sequence[str]) -> list[str]:
    settings: dict[str, Any] = {
        "ServerApp.sock": short_socket_path(NOTEBOOK_PORT[0]),
        "ServerApp.root_dir": str(Path.cwd()),
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.quit_button": False,
        "ServerApp.log_level": "WARN",
        "IdentityProvider.token": "",
        "ServerApp.identity_provider_class": "hopyard.run_servers.user_identity.RunUserIdentity",
        "FileContentsManager.delete_to_trash": False,
        "LabApp.default_url": "/lab" + "".join(f"/tree/{name}" for name in arguments[:1]),
        "LabApp.news_url": None,
        "LabApp.log_level": "WARN",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    if len(runtime) + _KERNEL_FILE_LENGTH <= _MAX_SOCKET_PATH:
        settings["KernelManager.transport"] = "ipc"
    return [f"--{name}={value}" for name, value in settings.items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
