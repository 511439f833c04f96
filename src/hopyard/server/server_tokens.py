"""What servers of one database show each other. Each makes a key when it starts, and records it in the
database: a server that can read the key is one of them. Before a token is sent, the other side proves that it
is the server with that key.
"""

from __future__ import annotations

import hmac
from datetime import datetime, timedelta

from hopyard.errors import AuthError

SERVER_TOKEN = "hops_"
TOKEN_LIFE = timedelta(minutes=5)
CLOCKS_APART = timedelta(minutes=5)
_HINT = "the server was restarted, or its clock differs by minutes from this one's"


def server_token(key: str, *, sender: str, now: datetime) -> str:
    """For requests to the server with this key. sender: the engine of the one that asks."""
    expiry = int((now + TOKEN_LIFE).timestamp())
    return f"{SERVER_TOKEN}{sender}_{expiry}_{_mac(key, f'token {sender} {expiry}')}"


def sender_of(token: str, key: str, *, now: datetime) -> str:
    """The engine of the server that sent a token to the one with this key. Raises AuthError."""
    sender, _, rest = token.removeprefix(SERVER_TOKEN).rpartition("_")[0].rpartition("_")
    mac = token.rpartition("_")[2]
    if (
        not key
        or not rest.isdecimal()
        or len(rest) > 12
        or not hmac.compare_digest(mac.encode(), _mac(key, f"token {sender} {rest}").encode())
    ):
        raise AuthError("the token is not one of a server of this database", hints=(_HINT,))
    if (
        not now - CLOCKS_APART
        <= datetime.fromtimestamp(int(rest), now.tzinfo)
        <= now + TOKEN_LIFE + CLOCKS_APART
    ):
        raise AuthError("the token of the server has expired", hints=(_HINT,))
    return sender


def server_proof(key: str, nonce: str) -> str:
    """What the server with this key answers to a nonce."""
    return _mac(key, f"server {nonce}") if key else ""


def _mac(key: str, text: str) -> str:
    return hmac.digest(bytes.fromhex(key), text.encode(), "sha256").hex()
