"""The right to open a port of a run. The run's user and the owner of the server have it, as a right to
execute code. A run may send plots to the Visdom server of its user.

A program sends its token. A browser gets a link that works once, within a minute. The link sets a cookie for
the host name of this one port. The cookie is signed, names a token of the user, and is checked with that
token at each request.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hopyard.domain.access import Scope, expand_scopes
from hopyard.domain.audit import AuditRecord, Outcome
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import Run
from hopyard.domain.run_port import VISDOM_PORT, find_port
from hopyard.errors import AuthError, Conflict, Forbidden, NotFound
from hopyard.server.authentication import RUN_TOKEN_HINT, Caller
from hopyard.server.cache_validation import is_valid
from hopyard.server.ports.port_address import PortAddress
from hopyard.server.rates import RefusalRates
from hopyard.server.services import Services
from hopyard.server.visdom_runs import find_visdom_run

LINK_LIFETIME = timedelta(minutes=1)
COOKIE_LIFETIME = timedelta(hours=12)
OPEN_ACTION = "run.open_port"
_RECORD_INTERVAL = timedelta(hours=1)  # between two records of the same caller and port
_MAX_ENTRIES = 4096
# of an opened port: user, token, address; of a refusal: user, run
_RecordKey = tuple[str, str, PortAddress] | tuple[str, RunId]
_LINK_HINT = "get a new link: `hop port RUN {port} --print`"


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port that the caller may open now. number: as the run names it."""

    run: Run
    attempt: AttemptId
    address: PortAddress
    number: int
    caller: Caller


class PortAccess:
    """The links, cookies and rights of ports."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._links: dict[str, tuple[PortAddress, Caller, datetime]] = {}
        self._recorded_at: dict[_RecordKey, datetime] = {}
        self._refusals = RefusalRates()

    async def check(self, address: PortAddress, caller: Caller) -> OpenPort:
        """Returns the port. Raises Forbidden, NotFound, and Conflict for a run that does not run now."""
        services = self._services
        caller.require_scope(Scope.SUBMIT)
        user, run = caller.require_user(), await services.runs.get(address.run)
        if user not in (run.name.user, services.queue_cache.owner):
            allowed = ", ".join(dict.fromkeys([run.name.user, services.queue_cache.owner]))
            raise Forbidden(
                f"`{user}` cannot open the ports of run {run.name}; allowed users: {allowed}",
                hints=("a port gives access to a process of the run's user",),
            )
        return self._open(run, address, caller)

    async def check_visdom(self, address: PortAddress, caller: Caller) -> OpenPort:
        """Returns the port of the Visdom server of the run's user, for the token of a run.

        The address is that of the run itself with the name of this port: no run can name another user's.
        Raises Forbidden, NotFound, and Conflict for a Visdom server that does not run now.
        """
        if caller.run is None or address != PortAddress(caller.run, VISDOM_PORT[0]):
            raise Forbidden(
                "the token of a run opens no port but that of its user's Visdom", hints=(RUN_TOKEN_HINT,)
            )
        user = (await self._services.runs.get(caller.run)).name.user
        run = await find_visdom_run(self._services.runs, user)
        if run is None:
            raise NotFound(f"no Visdom server of {user} is live", hints=("start one: `hop visdom`",))
        return self._open(run, PortAddress(run.id, VISDOM_PORT[0]), caller)

    def _open(self, run: Run, address: PortAddress, caller: Caller) -> OpenPort:
        services, number = self._services, find_port(run.spec.ports, address.port)
        if number is None:
            named = ", ".join(run.spec.ports) or "none"
            raise NotFound(
                f"run {run.name} has no port `{address.port}`; its ports: {named}",
                hints=(f"name it when you submit the run: `hop run --port {address.port} …`",),
            )
        if address.rank >= run.spec.size:
            raise NotFound(f"run {run.name} has no replica {address.rank}")
        if run.phase.is_final or run.attempt is None or run.attempt.ended_at is not None:
            state = "has ended" if run.phase.is_final else f"is {run.phase}"
            raise Conflict(f"run {run.name} {state}: its ports are open while it runs")
        if run.attempt.engine != services.engine:
            raise Conflict(
                f"run {run.name} runs on another server of this database",
                hints=("run the command on that server",),
            )
        return OpenPort(run, run.attempt.id, address, number, caller)

    async def record(self, port: OpenPort, origin: str) -> None:
        """Records in the audit log that the caller opened the port, at most once an hour."""
        now, caller = self._services.now(), port.caller
        key = (caller.user, caller.token, port.address)
        last = self._recorded_at.get(key)
        if last is not None and abs(now - last) < _RECORD_INTERVAL:
            return
        self.note_recorded(port)
        await self._services.audit.record(
            AuditRecord(
                now,
                caller.user,
                OPEN_ACTION,
                str(port.run.name),
                port.run.id,
                origin=origin,
                token=caller.token,
                detail={"port": port.address.port, "rank": port.address.rank},
            )
        )

    async def record_refusal(
        self, address: PortAddress, caller: Caller, error: Forbidden, origin: str
    ) -> None:
        """Records that the caller may not open a port of this run, at most once an hour for all of its
        ports, and at most at the rate of other refusals: callers could name any number of ports."""
        now, key = self._services.now(), (caller.user, address.run)
        last = self._recorded_at.get(key)
        if (last is not None and abs(now - last) < _RECORD_INTERVAL) or not self._refusals.take(caller.user):
            return
        self._note(key, now)
        run = await self._services.runs.get(address.run)
        await self._services.audit.record(
            AuditRecord(
                now,
                caller.user,
                OPEN_ACTION,
                str(run.name),
                run.id,
                Outcome.REFUSED,
                origin,
                caller.token,
                {"why": error.message},
            )
        )

    def note_recorded(self, port: OpenPort) -> None:
        """Notes that the audit log has a record of this caller and port."""
        self._note((port.caller.user, port.caller.token, port.address), self._services.now())

    def _note(self, key: _RecordKey, now: datetime) -> None:
        self._recorded_at.pop(key, None)  # it becomes the newest
        _evict_oldest(self._recorded_at)
        self._recorded_at[key] = now

    def create_link(self, port: OpenPort, address: PortAddress) -> str:
        """Returns the secret of a link that opens the port once. address: with the number of the port."""
        now = self._services.now()
        while self._links and next(iter(self._links.values()))[2] <= now:
            del self._links[next(iter(self._links))]
        _evict_oldest(self._links)
        secret = secrets.token_urlsafe(32)
        self._links[secret] = address, port.caller, now + LINK_LIFETIME
        return secret

    def use_link(self, secret: str, address: PortAddress) -> str:
        """Returns the value of the cookie for the browser that opened this link. Raises AuthError."""
        now = self._services.now()
        linked_address, caller, until = self._links.pop(secret, (None, None, now))
        if caller is None or not is_valid(until, now, LINK_LIFETIME) or linked_address != address:
            raise AuthError(
                "this link was used, or has expired", hints=(_LINK_HINT.format(port=address.port),)
            )
        expiry = int((now + COOKIE_LIFETIME).timestamp())
        text = f"{expiry}.{caller.token}.{caller.user}"
        return f"{_mac(self._services.tokens.keys.current_secret, address, text)}.{text}"

    async def cookie_caller(self, cookie: str, address: PortAddress) -> Caller:
        """Returns the user of this cookie. Raises AuthError when it is missing, forged, expired, or its
        token was revoked."""
        refusal = AuthError("this page needs a link", hints=(_LINK_HINT.format(port=address.port),))
        mac, _, text = cookie.partition(".")
        expiry, token_id, user = (*text.split(".", 2), "", "", "")[:3]
        keys = [bytes.fromhex(key.secret) for key in self._services.tokens.keys]
        is_signed = any(hmac.compare_digest(mac.encode(), _mac(key, address, text).encode()) for key in keys)
        now = self._services.now()
        if not is_signed or not expiry.isdecimal() or int(expiry) <= now.timestamp():
            raise refusal
        tokens = await self._services.access.list_tokens(user)
        token = next((each for each in tokens if each.id == token_id and not each.is_expired(now)), None)
        if token is None:
            raise refusal
        return Caller(user, scopes=expand_scopes(token.scopes), token=token.id)


def _evict_oldest(entries: dict[Any, Any]) -> None:
    """Removes the oldest entry if there is no room for another one."""
    if len(entries) >= _MAX_ENTRIES:
        del entries[next(iter(entries))]


def _mac(key: bytes, address: PortAddress, text: str) -> str:
    message = f"port cookie {address.run} {address.rank} {address.port} {text}"
    return urlsafe_b64encode(hmac.digest(key, message.encode(), "sha256")).decode().rstrip("=")
