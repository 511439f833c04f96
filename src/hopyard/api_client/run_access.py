"""The access of a run to its server: a process inside a run has no user's token and no home.

The folder of its replica has `spec.json` (the address, the home of the node, the first token) and `token`
(the renewed token). The environment of a run does not name the home, which contains the owner's token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.api_client.client import Client
from hopyard.api_client.home_socket import home_client, loopback_port
from hopyard.config.home import REPLICA_VARIABLE, Home
from hopyard.domain.replica import SPEC_FILE, TOKEN_FILE
from hopyard.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class RunAccess:
    """folder: of the replica. url: of the server when the replica was launched.
    initial_token: until the server renews it."""

    folder: Path
    home: Home
    url: str
    initial_token: str

    def client(self) -> Client:
        """Returns a client with the present address of the server and the present token."""
        try:
            token = (self.folder / TOKEN_FILE).read_text().strip() or self.initial_token
        except OSError:
            token = self.initial_token
        url = str((self.home.read_server() or {}).get("url", ""))
        return home_client(self.home, token, url=url if loopback_port(url) else self.url)


def find_replica_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the folder of the replica that this process belongs to; None outside of runs."""
    folder = environ.get(REPLICA_VARIABLE)
    return Path(folder) if folder else None


def read_run_access(folder: Path) -> RunAccess:
    """Returns the access of the replica in `folder`. Raises IntegrityError if it is not the folder of a
    replica."""
    try:
        spec = json.loads((folder / SPEC_FILE).read_bytes())
        launch = spec["launch"]
        return RunAccess(
            folder, Home(Path(spec["node"]["home"])), str(launch["server_url"]), str(launch["token"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{folder / SPEC_FILE} cannot be read: {error}") from error
