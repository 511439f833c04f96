"""The identity of a home: its owner's name, a secret that only its owner can read, and its place in the file
system. A copy of a home has the same identity file but another place, so a proof for one home does not count
for the other."""

from __future__ import annotations

import json
from dataclasses import asdict

from hopyard.backports import dataclass
from hopyard.config.home import Home
from hopyard.private_files import write_atomically

NONCE_BYTES = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of `identity.json`. owner: a user of the server, whose token is in the file `token`.
    secret: hexadecimal digits."""

    owner: str
    secret: str


def read_identity(home: Home) -> Identity | None:
    """Returns None if there is no identity yet, or if it is damaged."""
    try:
        content = json.loads(home.identity_file.read_bytes())
        return Identity(str(content["owner"]), str(content["secret"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_identity(home: Home, identity: Identity) -> None:
    write_atomically(home.identity_file, json.dumps(asdict(identity)).encode() + b"\n", durable=True)


def folder_identity(home: Home) -> str:
    """Returns the identity of the folder itself: a copy of it has another one. Raises OSError."""
    status = home.root.stat()
    return f"{status.st_dev:x}:{status.st_ino:x}"


def identity_proof(identity: Identity, *, nonce: str, port: int, folder_identity: str) -> str:
    """Returns the answer to `nonce` with which a server proves that it is the server of this home. The answer
    names the server's port, so that the owner of another port cannot forward the question and use the
    answer."""
    import hmac

    return hmac.digest(
        bytes.fromhex(identity.secret), f"server {nonce} {port} {folder_identity}".encode(), "sha256"
    ).hex()
