"""The keys that sign the tokens of runs. They are stored in a file of the home that only its owner can
read."""

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
    """secret: hexadecimal digits. made_at, retired_at: unix seconds. A retired key signs no more tokens."""

    secret: str
    made_at: float
    retired_at: float | None = None

    @property
    def valid_until(self) -> float:
        """When the last token of this key expires. A later signed expiry is forged."""
        return inf if self.retired_at is None else self.retired_at + RUN_TOKEN_LIFETIME.total_seconds()


class SigningKeys:
    """The newest key signs. Retired keys are accepted until their last token has expired, so that live runs
    continue and renew their tokens at their next sync. save: stores the keys, newest first."""

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
        """Iterates over the accepted keys, newest first."""
        now = self._now().timestamp()
        return iter([key for key in self._keys if key.valid_until > now])

    def rotate(self) -> None:
        """Signs with a new key from now on. Raises OSError if the key cannot be stored; the keys are then
        unchanged."""
        now = self._now().timestamp()
        retired = [key if key.retired_at is not None else replace(key, retired_at=now) for key in self]
        keys = (SigningKey(os.urandom(KEY_BYTES).hex(), now), *retired)
        self._save(keys)
        self._keys = keys


async def load_signing_keys(file: Path, access: AccessStore, *, now: Callable[[], datetime]) -> SigningKeys:
    """Loads the keys of a home. A secret that an earlier version stored in the database becomes a retired
    key, and is removed from the database.

    Raises IntegrityError if the file is damaged.
    """

    def save(keys: Sequence[SigningKey]) -> None:
        write_atomically(file, json.dumps([asdict(key) for key in keys]).encode() + b"\n", durable=True)

    stored_keys = _read_keys(file)
    if stored_keys is None:
        old_secret = await access.signing_secret()
        stored_keys = [] if old_secret is None else [SigningKey(old_secret.hex(), 0.0)]
    keys = SigningKeys(stored_keys, now=now, save=save)
    if stored_keys and not stored_keys[0].made_at:
        keys.rotate()
    await access.remove_signing_secret(now=now())
    return keys


def _read_keys(file: Path) -> list[SigningKey] | None:
    try:
        return [SigningKey(**key) for key in json.loads(file.read_bytes())]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        hint = (
            "restore it from a backup, or remove it; after a removal, live runs can no longer report "
            "to any server"
        )
        raise IntegrityError(f"{file} cannot be read: {error}", hints=(hint,)) from error
