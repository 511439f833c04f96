"""The keys that tokens of runs are signed with: in a file of the home, rotated without cutting live runs
off."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.ids import AttemptId
from hopyard.errors import AuthError, IntegrityError
from hopyard.server.authentication import TokenAuthenticator
from hopyard.server.signing_keys import RUN_TOKEN_LIFETIME, SigningKey, SigningKeys, load_signing_keys
from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import secrets
from tests.server.api_server import ApiServer, run_scenario

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ATTEMPT = AttemptId("abcdefgh.1")


class Clock:
    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> datetime:
        return self.at


def tokens(clock: Clock, keys: SigningKeys | None = None) -> TokenAuthenticator:
    async def live(_attempt: AttemptId) -> bool:
        return True

    nothing: Any = None
    return TokenAuthenticator(nothing, keys or SigningKeys(now=clock), now=clock, is_live_attempt=live)


def test_token_of_the_previous_key_is_valid_and_renewed_at_once() -> None:
    async def scenario() -> None:
        clock = Clock()
        created = tokens(clock)
        old = created.sign_token(ATTEMPT)
        assert created.renew(old) is None
        await created.authenticate(f"Bearer {old}")
        created.rotate_key()
        await created.authenticate(f"Bearer {old}")
        fresh = created.renew(old)
        assert fresh is not None and created.renew(fresh) is None
        clock.at += RUN_TOKEN_LIFETIME
        with pytest.raises(AuthError):
            await created.authenticate(f"Bearer {old}")
        await created.authenticate(f"Bearer {fresh}")
        again = tokens(clock, created.keys)
        with pytest.raises(AuthError):
            await again.authenticate(f"Bearer {old}")

    asyncio.run(scenario())


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(days=1)])
def test_live_run_is_accepted_after_the_clock_was_set_back(jump: timedelta) -> None:
    async def scenario() -> None:
        clock = Clock()
        created = tokens(clock)
        token = created.sign_token(ATTEMPT)
        clock.at -= jump
        for server in (created, tokens(clock, created.keys)):
            await server.authenticate(f"Bearer {token}")
            fresh = server.renew(token)
            assert fresh is not None and server.renew(fresh) is None

    asyncio.run(scenario())


def test_retired_key_signs_no_new_token() -> None:
    async def scenario() -> None:
        clock = Clock()
        created = tokens(clock)
        stolen = next(iter(created.keys))
        created.rotate_key()
        clock.at += timedelta(hours=1)
        forged = tokens(clock, SigningKeys([stolen], now=clock)).sign_token(ATTEMPT)
        with pytest.raises(AuthError, match="this server did not issue it"):
            await created.authenticate(f"Bearer {forged}")

    asyncio.run(scenario())


def test_key_that_cannot_be_saved_is_not_used() -> None:
    def full(_keys: object) -> None:
        raise OSError(28, "No space left on device")

    keys = SigningKeys([SigningKey("ab" * 32, NOW.timestamp())], now=Clock(), save=full)
    with pytest.raises(OSError, match="No space"):
        keys.rotate()
    assert keys.current_secret == b"\xab" * 32 and [key.retired_at for key in keys] == [None]


def test_secret_moves_out_of_the_database_once_and_its_tokens_stay_valid(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock, file = Clock(), tmp_path / "home" / "signing-keys.json"
        database = Database.open(tmp_path / "hopyard.db")
        access = SqlAccessStore(database)
        await database.write(
            lambda conn: conn.execute(secrets.insert().values(name="signing", value=b"s" * 32)).rowcount
        )
        old = tokens(clock, SigningKeys([SigningKey((b"s" * 32).hex(), 0.0)], now=clock)).sign_token(ATTEMPT)
        keys = await load_signing_keys(file, access, now=clock)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and keys.current_secret != b"s" * 32
        assert await access.signing_secret() is None
        created = tokens(clock, keys)
        await created.authenticate(f"Bearer {old}")
        assert created.renew(old)
        assert list(await load_signing_keys(file, access, now=clock)) == list(keys), (
            "the next start finds them in the file"
        )
        file.write_text("{")
        with pytest.raises(IntegrityError, match=r"signing-keys\.json cannot be read"):
            await load_signing_keys(file, access, now=clock)
        await database.close()

    asyncio.run(scenario())


def test_live_runs_continue_over_a_key_rotation(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        old = api.run_token(run)
        await api.request("POST", "/key/rotate", token=old, status=403)
        response = await api.request("POST", "/key/rotate")
        assert datetime.fromisoformat(response["until"]) > datetime.now(UTC) + timedelta(hours=23)
        fresh = (await api.sync(run, [("stdout", 0, b"x")], token=old))["token"]
        assert fresh
        assert (await api.sync(run, [], token=fresh))["token"] is None
        noted = (await api.request("GET", "/audit"))["records"]
        (event,) = [
            record
            for record in noted
            if (record["action"], record["outcome"]) == ("server.rotate_key", "done")
        ]
        assert event["user"] == "alice" and fresh not in json.dumps(event)

    run_scenario(tmp_path, scenario)
