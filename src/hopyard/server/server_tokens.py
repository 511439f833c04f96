"""Authentication between the servers of one database.

Each server creates a key at its start and records it in the database. A server that can read the key is
therefore one of them. Before a token is sent, the peer proves that it has that key.
"""

from __future__ import annotations

import hmac
from datetime import datetime, timedelta

from hopyard.errors import AuthError

SERVER_TOKEN_PREFIX = "hops_"
TOKEN_LIFETIME = timedelta(minutes=5)
MAX_CLOCK_SKEW = timedelta(minutes=5)
_REJECTED_HINT = "synchronise the clocks of both servers, or retry if that server was restarted"


def server_token(key: str, *, sender: str, now: datetime) -> str:
    """Returns a token for requests to the server with this key. sender: the engine of the requesting
    server."""
    expiry = int((now + TOKEN_LIFETIME).timestamp())
    return f"{SERVER_TOKEN_PREFIX}{sender}_{expiry}_{_mac(key, f'token {sender} {expiry}')}"


def verify_server_token(token: str, key: str, *, now: datetime) -> str:
    """Returns the engine of the server that sent a token to the server with this key. Raises AuthError."""
    sender, _, expiry = token.removeprefix(SERVER_TOKEN_PREFIX).rpartition("_")[0].rpartition("_")
    mac = token.rpartition("_")[2]
    if (
        not key
        or not expiry.isdecimal()
        or len(expiry) > 12
        or not hmac.compare_digest(mac.encode(), _mac(key, f"token {sender} {expiry}").encode())
    ):
        raise AuthError("unknown token: no server of this database issued it", hints=(_REJECTED_HINT,))
    if (
        not now - MAX_CLOCK_SKEW
        <= datetime.fromtimestamp(int(expiry), now.tzinfo)
        <= now + TOKEN_LIFETIME + MAX_CLOCK_SKEW
    ):
        raise AuthError("the token of the server has expired", hints=(_REJECTED_HINT,))
    return sender


def server_proof(key: str, nonce: str) -> str:
    """Returns the response of the server with this key to a nonce."""
    return _mac(key, f"server {nonce}") if key else ""


def _mac(key: str, text: str) -> str:
    return hmac.digest(bytes.fromhex(key), text.encode(), "sha256").hex()
