"""What a home and its database know of each other: the ID of the home, its owner, the owner's token, and the
database to which its files belong. Each is recorded at the first start."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from datetime import datetime

from hopyard.config.home import Home, user_name
from hopyard.config.home_identity import Identity, read_identity, write_identity
from hopyard.domain.ids import slug
from hopyard.interfaces.access_store import AccessStore
from hopyard.private_files import write_atomically
from hopyard.server.authentication import hash_token, new_user_token

SECRET_BYTES = 32


def ensure_home_id(home: Home) -> str:
    """Returns the ID that distinguishes this home from others on the same database. It does not change with
    tokens."""
    try:
        return home.mark_file.read_text().strip()
    except FileNotFoundError:
        token = home.read_token()  # its hash was the ID of a home before homes had an ID of their own
        home_id = os.urandom(6).hex() if token is None else hash_token(token)[:12]
        write_atomically(home.mark_file, home_id.encode() + b"\n", durable=True)
        return home_id


async def other_database_warning(home: Home, access: AccessStore) -> str:
    """Returns a warning when the blobs and streams of the home belong to another database; "" otherwise. This
    database does not reference them, so the garbage collection would remove all of them."""
    current_id = await access.database_id()
    try:
        recorded_id = home.database_id_file.read_text().strip()
    except FileNotFoundError:
        with suppress(OSError):  # on a full disk, the next start writes it
            write_atomically(home.database_id_file, current_id.encode() + b"\n", durable=True)
        return ""
    if recorded_id == current_id:
        return ""
    return (
        "the files of this home belong to another database, so unreferenced files are not removed: configure "
        f"that database, or remove {home.database_id_file} to abandon the files"
    )


async def ensure_identity(home: Home, access: AccessStore) -> Identity:
    """Returns the identity of the home, and records it at the first start.

    The owner's name is that of the user of the owner's token if the store knows it, else the login name of
    this process's uid. Variables such as $USER are not read.
    """
    identity = read_identity(home)
    if identity is None:
        token = home.read_token()
        record = None if token is None else await access.find_token(hash_token(token))
        owner = slug(user_name(os.geteuid()), fallback="owner") if record is None else record.user
        identity = Identity(owner, secrets.token_hex(SECRET_BYTES))
        write_identity(home, identity)
    return identity


async def ensure_token(home: Home, access: AccessStore, owner: str, home_id: str, *, now: datetime) -> None:
    """Ensures a valid owner's token of this home, in a file that only the owner can read.

    If the file is missing, or its token is unknown or expired, a new token is created and the previous one is
    revoked.
    """
    token = home.read_token()
    record = None if token is None else await access.find_token(hash_token(token))
    if record is not None and not record.is_expired(now):
        return
    name = f"home-{home_id[:6]}"
    for old_record in await access.list_tokens(owner):
        if old_record.name in (name, ""):  # "": created by a version that gave tokens no names
            await access.remove_token(old_record.id)
    token = new_user_token()
    write_atomically(home.token_file, token.encode() + b"\n", durable=True)
    await access.add_token(owner, hash_token(token), now=now, name=name)
