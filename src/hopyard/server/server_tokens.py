"""What servers of one database show each other. Each makes a key when it starts, and records it in the
database: a server that can read the key is one of them. Before a token is sent, the other side proves that it
is the server with that key.
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
    """For requests to the server with this key. sender: the engine of the one that asks."""
    expiry = int((now + TOKEN_LIFETIME).timestamp())
    return f"{SERVER_TOKEN_PREFIX}{sender}_{expiry}_{_mac(key, f'token {sender} {expiry}')}"


def verify_server_token(token: str, key: str, *, now: datetime) -> str:
    """The engine of the server that sent a token to the one with this key. Raises AuthError."""
    sender, _, rest = token.removeprefix(SERVER_TOKEN_PREFIX).rpartition("_")[0].rpartition("_")
    mac = token.rpartition("_")[2]
    if (
        not key
        or not rest.isdecimal()
        or len(rest) > 12
        or not hmac.compare_digest(mac.encode(), _mac(key, f"token {sender} {rest}").encode())
    ):
        raise AuthError("unknown token: no server of this database issued it", hints=(_REJECTED_HINT,))
    if (
        not now - MAX_CLOCK_SKEW
        <= datetime.fromtimestamp(int(rest), now.tzinfo)
        <= now + TOKEN_LIFETIME + MAX_CLOCK_SKEW
    ):
        raise AuthError("the token of the server has expired", hints=(_REJECTED_HINT,))
    return sender


def server_proof(key: str, nonce: str) -> str:
    """What the server with this key answers to a nonce."""
    return _mac(key, f"server {nonce}") if key else ""


def _mac(key: str, text: str) -> str:
    return hmac.digest(bytes.fromhex(key), text.encode(), "sha256").hex()
