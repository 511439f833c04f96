"""A connection between two replicas that check each other before their scripts start.

It carries frames of JSON, each with its length in front. Both sides first prove that they know the secret of
their attempt. So another program at the address of a replica is no answer, and a connection of another
program is refused.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct(">I")
_MAX_GREETING_BYTES = 512
MAX_FRAME_BYTES = 256 * 1024
_NOT_A_REPLICA = "another program answers"


class ProbeError(OSError):
    """The other side is no replica of this attempt, or broke the protocol."""


class ProbeChannel:
    """deadline: by the monotonic clock; later calls raise TimeoutError."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connection, deadline
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def send(self, **fields: Any) -> None:
        """Raises OSError."""
        data = json.dumps(fields, separators=(",", ":")).encode()
        self.send_bytes(_LENGTH.pack(len(data)) + data)

    def receive(self, *, max_bytes: int = MAX_FRAME_BYTES) -> dict[str, Any]:
        """Raises OSError; ProbeError for what is no frame."""
        (size,) = _LENGTH.unpack(self.receive_bytes(_LENGTH.size))
        if size > max_bytes:
            raise ProbeError(_NOT_A_REPLICA)
        try:
            frame = json.loads(self.receive_bytes(size))
        except ValueError as error:
            raise ProbeError(_NOT_A_REPLICA) from error
        if not isinstance(frame, dict):
            raise ProbeError(_NOT_A_REPLICA)
        return frame

    def send_bytes(self, data: bytes) -> None:
        """Raises OSError."""
        self._set_timeout()
        self._socket.sendall(data)

    def receive_bytes(self, size: int) -> bytes:
        """Raises OSError."""
        data = bytearray()
        while len(data) < size:
            self._set_timeout()
            chunk = self._socket.recv(min(size - len(data), 64 * 1024))
            if not chunk:
                raise ConnectionResetError("the connection was closed")
            data += chunk
        return bytes(data)

    def set_deadline(self, deadline: float) -> None:
        self._deadline = deadline

    def _set_timeout(self) -> None:
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(remaining_s)

    # -- the proof of the secret -----------------------------------------------------------------------------

    def greet(self, secret: str, own_rank: int, peer_rank: int) -> None:
        """Authenticates both sides; called by the one that connected. Raises OSError; ProbeError when another
        program answers."""
        nonce = secrets.token_hex(16)
        self.send(rank=own_rank, peer=peer_rank, nonce=nonce)
        answer = self.receive(max_bytes=_MAX_GREETING_BYTES)
        peer_nonce = str(answer.get("nonce"))
        subject = f"{own_rank} {peer_rank} {nonce} {peer_nonce}"
        if not hmac.compare_digest(str(answer.get("proof")).encode(), _proof(secret, "answer", subject)):
            raise ProbeError(_NOT_A_REPLICA)
        self.send(proof=_proof(secret, "greeting", subject).decode())
        if self.receive(max_bytes=_MAX_GREETING_BYTES).get("accepted") is not True:
            raise ProbeError(_NOT_A_REPLICA)

    def answer_greeting(self, secret: str, own_rank: int) -> int:
        """Authenticates both sides; called by the one that listens. Returns the rank of the other one. Raises
        OSError; ProbeError for another program."""
        greeting = self.receive(max_bytes=_MAX_GREETING_BYTES)
        rank, nonce = greeting.get("rank"), secrets.token_hex(16)
        if not isinstance(rank, int) or greeting.get("peer") != own_rank:
            raise ProbeError(_NOT_A_REPLICA)
        subject = f"{rank} {own_rank} {greeting.get('nonce')} {nonce}"
        self.send(nonce=nonce, proof=_proof(secret, "answer", subject).decode())
        proof = str(self.receive(max_bytes=_MAX_GREETING_BYTES).get("proof")).encode()
        if not hmac.compare_digest(proof, _proof(secret, "greeting", subject)):
            raise ProbeError(_NOT_A_REPLICA)
        self.send(accepted=True)
        return rank


def _proof(secret: str, side: str, subject: str) -> bytes:
    return hmac.digest(bytes.fromhex(secret), f"{side} {subject}".encode(), "sha256").hex().encode()
