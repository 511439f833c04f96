"""Permissions by token: none, wrong, of a user, of the run itself, of another run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.access import Scope, Token
from hopyard.domain.ids import AttemptId
from hopyard.errors import AuthError, Forbidden, RunEnded
from hopyard.server.api import all_endpoints
from hopyard.server.authentication import Caller, TokenAuthenticator, bearer_token, hash_token, new_user_token
from hopyard.server.signing_keys import SigningKey, SigningKeys
from tests.server.api_server import API, TOKEN, ApiServer, run_scenario

NOW, HOUR = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
ATTEMPT = AttemptId("abcdefgh.1")

# Endpoints that a run's token may use with its own id in the path. All others need a user's token.
OF_A_RUN = {
    "post_attempts_attempt_replicas_rank_sync",
    "post_attempts_attempt_replicas_rank_preflight",
    "post_attempts_attempt_checkpoints",
    "post_attempts_attempt_checkpoints_step_verify",
    "post_attempts_attempt_artifact",
    "post_attempts_attempt_run_folder",
    "post_attempts_attempt_lock",
    "get_runs_id",
    "get_runs_id_attempts",
    "get_runs_id_events",
    "get_runs_id_follow",
    "get_runs_id_log",
    "get_runs_id_files",
    "get_runs_id_file",
    "get_runs_id_media",
    "get_runs_id_media_item",
    "get_runs_id_output",
    "get_runs_id_streams",
    "get_runs_id_raw_attempt_rank_stream",
    "get_runs_id_metrics",
    "get_runs_id_system",
    "get_runs_id_checkpoints",
    "post_blobs_missing",
    "post_blobs_pack",
    "post_blobs_fetch",
    "post_blobs_locate",
    "put_blobs_digest",
    "post_blobs_digest_verify",
    "post_runs",  # of a study; the requested id is not a run
    "post_runs_id_trials",
    "get_runs_id_journal",
}


def address(path: str, run: str, attempt: str) -> str:
    filled = {
        "id": run,
        "attempt": attempt,
        "rank": "0",
        "stream": "stdout",
        "item": "1-0-0",
        "step": "1",
        "digest": "0" * 64,
        "name": "mnist",
    }
    filled |= {
        "token": "0" * 12,
        "secret": "KEY",
        "report": "0" * 16,
        "version": "1",
        "user": "alice",
        "project": "p",
        "number": "1",
    }
    for part, value in filled.items():
        path = path.replace("{" + part + "}", value)
    return path


def short_query(path: str) -> dict[str, str]:
    """Returns an invalid query for a path with an endless response."""
    if path.endswith("/follow"):
        return {"cursors": "-"}
    return {"after": "-"} if path == "/events" else {}


def test_every_endpoint_except_health_ready_proof_and_login_needs_a_token(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for endpoint in all_endpoints(api.services):
            if endpoint.auth == "anyone":
                assert endpoint.path in ("/health", "/ready", "/proof", "/session")
                if endpoint.path != "/session" or endpoint.method == "POST":
                    continue
            at = API + address(endpoint.path, "someruns", "someruns.1")
            wrong = [
                "",
                "Bearer",
                "Bearer ",
                "Basic abc",
                "Bearer hop_wrong",
                "Bearer hopr_x",
                "Bearer hopr_a.1_99999999999_x",
                "Bearer hopr_a_b_c_d",
            ]
            for header in wrong:
                response = await api.http.request(endpoint.method, at, headers={"Authorization": header})
                assert response.status_code == 401, (endpoint.operation_id, header)
                assert response.json()["error"]["code"] == "not_authorised"
                assert response.headers["www-authenticate"] == "Bearer"

    run_scenario(tmp_path, scenario, loops=False)


def test_run_token_permits_its_own_run_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        mine, other = await api.start_run(), await api.start_run()
        token = api.run_token(mine)
        for endpoint in all_endpoints(api.services):
            if endpoint.auth == "anyone":
                continue
            path = address(endpoint.path, mine["id"], f"{mine['id']}.1")
            own = await api.send(endpoint.method, path, token=token, **short_query(endpoint.path))
            assert (own.status_code != 403) == (endpoint.operation_id in OF_A_RUN), (
                endpoint.operation_id,
                own.text,
            )
            if "{id}" in endpoint.path or "{attempt}" in endpoint.path:
                foreign = await api.send(
                    endpoint.method, address(endpoint.path, other["id"], f"{other['id']}.1"), token=token
                )
                assert foreign.status_code == 403, endpoint.operation_id
                assert foreign.json()["error"]["code"] == "forbidden"
            if "{attempt}" in endpoint.path:
                older = await api.send(
                    endpoint.method, address(endpoint.path, mine["id"], f"{mine['id']}.2"), token=token
                )
                # a run reads its earlier attempts, and writes for none of them
                expected = 200 if endpoint.operation_id == "get_runs_id_raw_attempt_rank_stream" else 403
                assert older.status_code == expected, endpoint.operation_id

    run_scenario(tmp_path, scenario)


def test_token_of_an_evaluation_may_only_read_the_evaluated_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        trained, other = await api.start_run(), await api.start_run()
        token = api.run_token(await api.start_run(evaluation={"run": trained["id"]}))
        for path in ("", "/checkpoints", "/attempts"):
            assert (await api.send("GET", f"/runs/{trained['id']}{path}", token=token)).status_code == 200
            assert (await api.send("GET", f"/runs/{other['id']}{path}", token=token)).status_code == 403
        stop = await api.send("POST", f"/runs/{trained['id']}/stop", token=token)
        assert stop.status_code == 403

    run_scenario(tmp_path, scenario)


def test_run_reads_only_the_other_runs_that_it_was_submitted_to_read(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        shown, other = await api.start_run(), await api.start_run()
        token = api.run_token(await api.start_run(reads=[shown["id"]]))
        for path in ("", "/metrics", "/events", "/files"):
            assert (await api.send("GET", f"/runs/{shown['id']}{path}", token=token)).status_code == 200
            assert (await api.send("GET", f"/runs/{other['id']}{path}", token=token)).status_code == 403
        for method, path in (("POST", "/stop"), ("GET", "/why")):
            assert (await api.send(method, f"/runs/{shown['id']}{path}", token=token)).status_code == 403

    run_scenario(tmp_path, scenario)


def test_run_token_reads_no_stream_of_another_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        mine, other = await api.start_run(), await api.start_run()
        token = api.run_token(mine)
        mixed = f"/runs/{mine['id']}/raw/{other['id']}.1/0/stdout"
        assert (await api.send("GET", mixed, token=token)).status_code == 403
        await api.request("GET", mixed, status=404)  # a user gets 404
        # an evaluation reads in a later attempt what an earlier one has done
        earlier = f"/runs/{mine['id']}/raw/{mine['id']}.2/0/events"
        assert (await api.send("GET", earlier, token=token)).status_code == 200
        cursors = f'{{"{other["id"]}.1:0:stdout": 0}}'
        assert (
            await api.send("GET", f"/runs/{mine['id']}/follow", token=token, cursors=cursors)
        ).status_code == 400

    run_scenario(tmp_path, scenario)


def test_sync_renews_the_token_after_half_of_its_lifetime(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        assert (await api.sync(run, [], token=api.run_token(run)))["token"] is None
        assert (await api.sync(run, [], token=TOKEN))["token"] is None  # a user's is never renewed
        keys = api.services.tokens.keys

        async def live(attempt: AttemptId) -> bool:
            return True

        then = datetime.now(UTC) - timedelta(hours=13)
        old = TokenAuthenticator(
            api.services.access, keys, now=lambda: then, is_live_attempt=live
        ).sign_token(AttemptId(f"{run['id']}.1"))
        fresh = (await api.sync(run, [], token=old))["token"]
        assert fresh not in (None, old)
        await api.sync(run, [], token=fresh)
        # Expired, but the attempt is live: a replica without a connection for days returns.
        long_ago = datetime.now(UTC) - timedelta(days=9)
        expired = TokenAuthenticator(
            api.services.access, keys, now=lambda: long_ago, is_live_attempt=live
        ).sign_token(AttemptId(f"{run['id']}.1"))
        assert (await api.sync(run, [], token=expired))["token"]
        await api.finish(run)
        await api.sync(run, [], token=expired, status=401)

    run_scenario(tmp_path, scenario)


class OneUserStore:
    """An access store with one user."""

    def __init__(self) -> None:
        self.asked, self.revoked = 0, False

    async def find_token(self, token_hash: str, /) -> Token | None:
        self.asked += 1
        return (
            Token("0" * 12, "alice", "ci", frozenset({Scope.SUBMIT}), NOW, NOW + HOUR, NOW)
            if token_hash == hash_token(TOKEN) and not self.revoked
            else None
        )


def tokens(
    *, now: Callable[[], datetime] = lambda: NOW, live: bool = True, secret: bytes = b"s" * 32
) -> tuple[TokenAuthenticator, OneUserStore]:
    async def is_live(attempt: AttemptId) -> bool:
        return live and attempt == ATTEMPT

    store: Any = OneUserStore()
    return TokenAuthenticator(
        store,
        SigningKeys([SigningKey(secret.hex(), NOW.timestamp())], now=now),
        now=now,
        is_live_attempt=is_live,
    ), store


def test_token_lookup_is_cached_for_seconds_and_expiry_is_exact() -> None:
    async def scenario() -> None:
        clock = [NOW]
        authenticator, store = tokens(now=lambda: clock[0])
        for _ in range(3):
            caller = await authenticator.authenticate(f"Bearer {TOKEN}")
        assert caller == Caller("alice", scopes=frozenset({Scope.READ, Scope.SUBMIT}), token="0" * 12)
        assert store.asked == 1
        with pytest.raises(AuthError):
            await authenticator.authenticate("Bearer hop_other")
        clock[0] += timedelta(seconds=3)
        await authenticator.authenticate(f"Bearer {TOKEN}")
        assert store.asked == 3
        store.revoked = True  # by way of another server on the same database
        clock[0] += timedelta(seconds=3)
        with pytest.raises(AuthError, match="unknown token"):
            await authenticator.authenticate(f"Bearer {TOKEN}")
        store.revoked = False
        clock[0] = NOW + HOUR
        with pytest.raises(AuthError, match="`ci` expired"):
            await authenticator.authenticate(f"Bearer {TOKEN}")

    asyncio.run(scenario())


def test_forged_or_altered_run_token_is_refused() -> None:
    async def scenario() -> None:
        authenticator, _ = tokens()
        good = authenticator.sign_token(AttemptId("abcdefgh.1"))
        caller = await authenticator.authenticate(f"bearer {good}")
        assert (caller.run, caller.attempt) == ("abcdefgh", "abcdefgh.1")
        attempt, expiry, mac = good.removeprefix("hopr_").split("_")
        elsewhere, _ = tokens(secret=b"x" * 32)
        for token in (
            f"hopr_abcdefgh.2_{expiry}_{mac}",
            f"hopr_{attempt}_{int(expiry) + 1}_{mac}",
            f"hopr_{attempt}_{expiry}_{mac[:-1]}",
            f"hopr_{attempt}_{expiry}_",
            f"hopr_{attempt}_{expiry}",
            f"hopr_{attempt}_{expiry}_{mac}_",
            elsewhere.sign_token(AttemptId("abcdefgh.1")),
        ):
            with pytest.raises(AuthError):
                await authenticator.authenticate(f"Bearer {token}")

    asyncio.run(scenario())


@pytest.mark.parametrize("hours", [0, 23, 25, 1000])
def test_run_token_is_valid_until_its_run_ends(hours: int) -> None:
    async def scenario() -> None:
        authenticator, _ = tokens()
        token = authenticator.sign_token(ATTEMPT)
        later, _ = tokens(now=lambda: NOW + hours * HOUR)
        assert (await later.authenticate(f"Bearer {token}")).run == "abcdefgh"
        over, _ = tokens(now=lambda: NOW + hours * HOUR, live=False)
        with pytest.raises(RunEnded):
            await over.authenticate(f"Bearer {token}")

    asyncio.run(scenario())


def test_token_with_too_long_lifetime_is_refused() -> None:
    async def scenario() -> None:
        ahead, _ = tokens(now=lambda: NOW + timedelta(days=3650))
        authenticator, _ = tokens()
        with pytest.raises(AuthError, match="expires later"):
            await authenticator.authenticate(f"Bearer {ahead.sign_token(ATTEMPT)}")
        slightly, _ = tokens(now=lambda: NOW + timedelta(minutes=4))  # clocks of two servers differ
        assert (await authenticator.authenticate(f"Bearer {slightly.sign_token(ATTEMPT)}")).attempt == ATTEMPT

    asyncio.run(scenario())


def test_callers_and_headers() -> None:
    assert len(new_user_token()) == len("hop_") + 43
    assert new_user_token() != new_user_token()
    assert bearer_token("Bearer abc") == "abc"
    for header in (None, "", "abc", "Bearer", "Bearer \u00e9"):
        with pytest.raises(AuthError):
            bearer_token(header)
    run = Caller("run x", "abcdefgh", AttemptId("abcdefgh.1"))  # type: ignore[arg-type]
    run.require_run("abcdefgh")
    for refused in (
        run.require_user,
        lambda: run.require_run("other"),
        lambda: run.require_attempt("abcdefgh.2"),
    ):
        with pytest.raises(Forbidden):
            refused()
    assert Caller("alice").require_user() == "alice"
