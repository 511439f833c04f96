"""The keys that a server signs the tokens of its runs with.
They lie in a file of the home that only its owner can read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from math import inf
from pathlib import Path

from hopyard.errors import IntegrityError
from hopyard.interfaces.access_store import AccessStore
from hopyard.private_files import write_atomically

RUN_TOKEN_LIFETIME = timedelta(hours=24)
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """secret: hexadecimal digits. made_at, retired_at: unix seconds; since `retired_at` the key signs
    nothing."""

    secret: str
    made_at: float
    retired_at: float | None = None

    @property
    def valid_until(self) -> float:
        """When the last token that this key signed has expired; what it seems to have signed beyond is
        forged."""
        return inf if self.retired_at is None else self.retired_at + RUN_TOKEN_LIFETIME.total_seconds()


class SigningKeys:
    """The newest key signs. Retired ones are believed until the last token that they signed has expired, so
    live runs go on and renew their tokens at their next sync. save: keeps the keys, newest first."""

    def __init__(
        self,
        keys: Sequence[SigningKey] = (),
        *,
        now: Callable[[], datetime],
        save: Callable[[Sequence[SigningKey]], None] = lambda _: None,
    ) -> None:
        self._now, self._save = now, save
        self._keys = tuple(keys)
        if not self._keys:
            self.rotate()

    @property
    def current_secret(self) -> bytes:
        return bytes.fromhex(self._keys[0].secret)

    def __iter__(self) -> Iterator[SigningKey]:
        """Those that are believed now, newest first."""
        now = self._now().timestamp()
        return iter([key for key in self._keys if key.valid_until > now])

    def rotate(self) -> None:
        """Sign with a new key from now on. Raises OSError where it cannot be kept; then nothing has
        changed."""
        now = self._now().timestamp()
        retired = [key if key.retired_at is not None else replace(key, retired_at=now) for key in self]
        keys = (SigningKey(os.urandom(KEY_BYTES).hex(), now), *retired)
        self._save(keys)
        self._keys = keys


async def load_signing_keys(file: Path, access: AccessStore, *, now: Callable[[], datetime]) -> SigningKeys:
    """The keys of a home. The secret that earlier versions kept in the database becomes a retired key once,
    and is removed there.

    Raises IntegrityError where the file is damaged.
    """

    def save(keys: Sequence[SigningKey]) -> None:
        write_atomically(file, json.dumps([asdict(key) for key in keys]).encode() + b"\n", durable=True)

    found = _read_keys(file)
    if found is None:
        old = await access.signing_secret()
        found = [] if old is None else [SigningKey(old.hex(), 0.0)]
    keys = SigningKeys(found, now=now, save=save)
    if found and not found[0].made_at:
        keys.rotate()
    await access.remove_signing_secret(now=now())
    return keys


def _read_keys(file: Path) -> list[SigningKey] | None:
    try:
        return [SigningKey(**key) for key in json.loads(file.read_bytes())]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as bad:
        hint = (
            "restore it from a backup, or remove it; after a removal, live runs can no longer report "
            "to any server"
        )
        raise IntegrityError(f"{file} cannot be read: {bad}", hints=(hint,)) from bad
