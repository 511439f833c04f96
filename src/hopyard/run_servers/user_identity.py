"""The user of a Jupyter server behind the server of Hopyard, which has checked each request."""

from __future__ import annotations

import os
from typing import Any

from jupyter_server.auth.identity import IdentityProvider, User


class RunUserIdentity(IdentityProvider):
    """Each request is the user's of the run: only that user and the owner of the server may open the port."""

    def get_user(self, handler: Any) -> User:  # noqa: ARG002
        return User(username=os.environ.get("HOPYARD_RUN", "").partition("/")[0] or "user")

    def validate_security(self, app: Any, ssl_options: dict[str, Any] | None = None) -> None:
        """Warns of nothing: only the server reaches the socket."""
