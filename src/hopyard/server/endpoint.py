"""What an endpoint is: an address, who may ask, what goes in and comes out, and the function that answers.

One declaration gives both the running route and its part of the OpenAPI description, so neither can differ
from the other. Starlette below, msgspec for the shapes: measured against FastAPI this is a third of the time
of a request, 230 ms less at the server's start and 14 MB less memory.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec
import msgspec.inspect
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from hopyard.domain.access import Scope
from hopyard.domain.ids import ATTEMPT_PATTERN, DIGEST_PATTERN, NAME_PATTERN, RUN_ID_PATTERN
from hopyard.domain.text import shown
from hopyard.errors import AuthError, HopyardError, NotFound, RunOver, ServerUnavailable
from hopyard.server import whole_numbers
from hopyard.server.answers import Malformed, answer, error_answer, log, plain_error, readable
from hopyard.server.audit import Auditor
from hopyard.server.auth import Caller, Tokens
from hopyard.server.bodies import CLOSED, GIVE_UP, LONG_BYTES, BodyMemory, Lease
from hopyard.server.fields import RULES, SECRET_NAME
from hopyard.server.rates import Kind, Rates
from hopyard.server.user_turns import UserTurns

Q = TypeVar("Q")
B = TypeVar("B")
Who = Literal["anyone", "user", "run", "study"]
BODY_LIMIT = 4 * 1024 * 1024  # of a JSON body


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No query, or no body."""


@dataclass(frozen=True, slots=True)
class Ask(Generic[Q, B]):
    """One request, checked: the caller may ask this, and path, query and body have the declared shapes."""

    request: Request
    caller: Caller
    path: Mapping[str, str]
    query: Q
    body: B
    lease: Lease  # what body and answer hold of the server's memory

    async def read_body(self, limit: int) -> bytes:
        """The whole body of an endpoint that takes bytes.
        Raises Malformed (naming the limit) as soon as more than `limit` bytes come."""
        return await read_body(self.request, limit, self.lease)


@dataclass(frozen=True, slots=True)
class Raw:
    """A body or answer that is bytes and not JSON; `what` describes them."""

    what: str
    media: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, B]):
    """path: below `/api/v1`, with `{id}`-like parts of PATH_PARTS.

    who: "user" needs a user's token; "run" takes also the token of the run that `{id}` or `{attempt}` names;
    "study" beside that the tokens of the study whose trial's run it is, and of one that continues that study,
    or this one. audit: what the audit log calls it; method and path give a name where it is left out.
    unaudited: why a request that is no GET is not written there: it changes nothing, or only what runs report
    of themselves.
    scope: what a user's token must be good for; left out: READ for GET and HEAD, SUBMIT for all else. query,
    body: msgspec structs that the query and the JSON body must be. body as Raw: bytes that `call` reads
    itself, within `limit`. call: returns what is answered as JSON with `status`, or a Response of its own.
    heavy: it may compute for seconds, so each user has one such request answered at a time. returns: the type
    of the answer, for the description. also: good statuses with which `call` answers that itself. errors:
    statuses that it may answer beside those every one may. rate: which rate of its user a request counts to,
    beside `requests`.
    """

    method: str
    path: str
    call: Callable[[Ask[Q, B]], Awaitable[Any]]
    query: type[Q] = Nothing  # type: ignore[assignment]  # the default of a type parameter
    body: type[B] | Raw = Nothing  # type: ignore[assignment]
    returns: Any = Nothing
    status: int = 200
    also: Sequence[int] = ()
    who: Who = "user"
    errors: Sequence[int] = ()
    limit: int = BODY_LIMIT
    tag: str = ""
    rate: Kind = "requests"
    scope: Scope | None = None
    audit: str = ""
    unaudited: str = ""
    heavy: bool = False

    @property
    def action(self) -> str:
        """What the audit log calls a request, as `run.stop`: `audit`, or what method and path say."""
        if self.audit:
            return self.audit
        first, *others = [part for part in self.path.strip("/").split("/") if not part.startswith("{")]
        verb = "_".join(others) or _VERBS.get(self.method, self.method.lower())
        return f"{first.removesuffix('s')}.{verb}"

    @property
    def changes(self) -> bool:
        """Whether it changes what the audit log has to tell."""
        return self.method not in ("GET", "HEAD") and not self.unaudited

    @property
    def needs(self) -> Scope:
        """The scope that a user's token must have."""
        return self.scope or (Scope.READ if self.method in ("GET", "HEAD") else Scope.SUBMIT)

    @property
    def name(self) -> str:
        """What generated clients call it."""
        return f"{self.method.lower()}_" + re.sub(r"\W+", "_", self.path.strip("/")).strip("_")

    @property
    def summary(self) -> str:
        return (self.call.__doc__ or "").strip()


_VERBS = {
    "GET": "read",
    "HEAD": "read",
    "POST": "create",
    "PUT": "apply",
    "PATCH": "update",
    "DELETE": "delete",
}

# What each part of an address in braces must look like, and what it is.
PATH_PARTS: Mapping[str, tuple[str, str]] = {
    "id": (RUN_ID_PATTERN, "a run's id"),
    "attempt": (ATTEMPT_PATTERN, "an attempt's id"),
    "rank": (r"[0-9]{1,6}", "the rank of a replica"),
    "stream": (r"stdout|stderr|metrics|tensorboard|events|system|journal", "a stream"),
    "step": (r"[0-9]{1,18}", "a step"),
    "number": (r"[0-9]{1,9}", "a number that counts from 1"),
    "version": (r"[0-9]{1,9}|newest", "a version: its number, or `newest` (also written 0)"),
    "digest": (DIGEST_PATTERN, "a BLAKE3 digest"),
    "name": (NAME_PATTERN, "a dataset's name"),
    "node": (NAME_PATTERN, "a node's name"),
    "queue": (NAME_PATTERN, "a queue's name"),
    "reservation": (NAME_PATTERN, "a reservation's name"),
    "secret": (SECRET_NAME, "a secret's name"),
    "token": (r"[0-9a-f]{12}", "a token's id"),
    "user": (NAME_PATTERN, "a user's name"),
    "project": (NAME_PATTERN, "a project's name"),
}
_CHECKS = {part: re.compile(pattern) for part, (pattern, _) in PATH_PARTS.items()}
# An id that an earlier version took, and today's rule does not, still names its run: else that could not be
# ended. No file is named by what passes here.
_CHECKS["id"] = re.compile(r"[^\x00]{1,256}")


@dataclass(frozen=True, slots=True)
class Guard:
    """What every request passes: who sent it, how many the user may send, how much memory bodies may take,
    and how long."""

    tokens: Tokens
    rates: Rates
    bodies: BodyMemory
    audit: Auditor
    turns: UserTurns
    answer_s: float  # in which an answer that holds memory must be read


class Resource:
    """An ASGI application for one address: one endpoint per method."""

    def __init__(self, endpoints: Sequence[Endpoint[Any, Any]], guard: Guard) -> None:
        self._by_method = {e.method: (e, _json_decoder(e)) for e in endpoints}
        self._allow = {"Allow": ", ".join(sorted(self._by_method))}
        self._tokens, self._guard = guard.tokens, guard

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        found = self._by_method.get(scope["method"])
        if found is None:
            refused = plain_error(
                405, "usage", f"this address does not take {scope['method']}", headers=self._allow
            )
            await refused(scope, receive, send)
            return
        started, sent = False, 0
        lease = self._guard.bodies.lease()

        async def passing(message: Message) -> None:
            """The transport refuses what is written after the client hung up, until the protocol hears of
            that."""
            try:
                await send(message)
            except RuntimeError:
                closed = scope.get("state", {}).get(CLOSED)
                if closed is None or not closed():
                    raise

        async def sending(message: Message) -> None:
            """In pieces: each waits until the client has read of those before, so that the transport copies
            little of an answer."""
            nonlocal started, sent
            started = True
            body = message.get("body", b"")
            sent += len(body)
            if lease.held_bytes:
                patience.reschedule(began + (1 + sent // LONG_BYTES) * self._guard.answer_s)
            if len(body) <= _PIECE_BYTES:
                await passing(message)
                return
            rest = memoryview(body)
            for at in range(0, len(rest), _PIECE_BYTES):
                more = message.get("more_body", False) or at + _PIECE_BYTES < len(rest)
                await passing(
                    {"type": "http.response.body", "body": rest[at : at + _PIECE_BYTES], "more_body": more}
                )

        try:
            response = await self._answer(*found, Request(scope, receive), lease)
            began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(None) as patience:
                    await response(scope, receive, sending)
            except TimeoutError:
                if not patience.expired():
                    raise
                scope["state"][GIVE_UP]()
                # the connection is lost then, which the protocol has to know before this returns
                await asyncio.sleep(0)
        except HopyardError as error:
            if started:
                raise
            await error_answer(error)(scope, receive, passing)
        except ClientDisconnect:
            return
        except Exception as failed:
            if started:
                raise
            if isinstance(failed, OSError) and failed.errno in (errno.EMFILE, errno.ENFILE):
                log.warning("%s %s: %s", scope["method"], scope["path"], failed)
                # of others a part may be done: their clients decide
                later = {"Retry-After": "1"} if scope["method"] == "GET" else {}
                await plain_error(
                    503, ServerUnavailable.code, "the server has no descriptors left", headers=later
                )(scope, receive, passing)
                return
            log.exception("%s %s failed", scope["method"], scope["path"])
            fault = plain_error(500, "error", "the server failed at this request; its log says more")
            await fault(scope, receive, passing)
        finally:
            lease.release()

    async def _answer(
        self,
        endpoint: Endpoint[Any, Any],
        decoder: msgspec.json.Decoder[Any] | None,
        request: Request,
        lease: Lease,
    ) -> Response:
        path: Mapping[str, str] = request.path_params
        caller = _NOBODY
        try:
            if endpoint.who != "anyone":
                caller = await self._tokens.caller(request.headers.get("authorization"))
                await self._check(endpoint, caller, path)
            return await self._answer_to(caller, endpoint, decoder, request, lease)
        except RunOver:  # a replica that reports after its end
            raise
        except AuthError as refused:
            await self._guard.audit.refused(endpoint.action, request, caller, path, refused)
            raise

    async def _answer_to(
        self,
        caller: Caller,
        endpoint: Endpoint[Any, Any],
        decoder: msgspec.json.Decoder[Any] | None,
        request: Request,
        lease: Lease,
    ) -> Response:
        path: Mapping[str, str] = request.path_params
        for part, value in path.items():
            if _CHECKS[part].fullmatch(value) is None:
                raise NotFound(f"`{shown(value[:80])}` is not {PATH_PARTS[part][1]}")
        if endpoint.who != "anyone":
            self._count(endpoint, caller, request)
        query = (
            _NOTHING
            if endpoint.query is Nothing and not request.scope["query_string"]
            else parse_query(request, endpoint.query)
        )
        lease.user = caller.user
        data = None if decoder is None else await read_body(request, endpoint.limit, lease)
        async with self._guard.turns.of(caller.user) if endpoint.heavy else nullcontext():
            if endpoint.heavy and await request.is_disconnected():  # it hung up while it waited
                raise ClientDisconnect
            body: Any = _NOTHING
            if decoder is not None and data is not None:
                body = (
                    await asyncio.to_thread(decode_json, data, decoder)
                    if len(data) > _LARGE_BYTES
                    else decode_json(data, decoder)
                )
            ask = Ask(request, caller, path, query, body, lease)
            result = await (self._change(endpoint, ask) if endpoint.changes else endpoint.call(ask))
        response = result if isinstance(result, Response) else answer(result, endpoint.status)
        size = response.headers.get("content-length")
        if size is not None:  # one without is read while it is sent, and holds what it asked for
            lease.answered(int(size), must=not endpoint.changes)
        return response

    async def _change(self, endpoint: Endpoint[Any, Any], ask: Ask[Any, Any]) -> Any:
        """Make a change together with its record in the audit log."""
        audit, asked = self._guard.audit, (ask.query, ask.body)
        # A run tells by itself who submitted it, and thousands a second are accepted: they need not wait for
        # another commit.
        if endpoint.rate == "submissions":
            result = await endpoint.call(ask)
            audit.changed(endpoint.action, ask.request, ask.caller, asked, result)
            return result
        return await audit.change(
            endpoint.action, ask.request, ask.caller, ask.path, asked, lambda: endpoint.call(ask)
        )

    def _count(self, endpoint: Endpoint[Any, Any], caller: Caller, request: Request) -> None:
        """Raises TooManyRequests."""
        rates = self._guard.rates
        rates.take(caller.user, "requests")
        if endpoint.rate == "submissions":
            rates.take(caller.user, "submissions")
        elif endpoint.rate == "upload_bytes":
            rates.take(caller.user, "upload_bytes", _announced(request))

    async def _check(self, endpoint: Endpoint[Any, Any], caller: Caller, path: Mapping[str, str]) -> None:
        """Raises Forbidden unless the caller may ask this."""
        caller.require_scope(endpoint.needs)
        if caller.run is not None:
            if endpoint.who not in ("run", "study"):
                caller.require_user()
            if "id" in path and endpoint.who == "study":
                await self._tokens.require_family(caller, path["id"])
            elif "id" in path:
                caller.require_run(path["id"])
            if "attempt" in path:
                caller.require_attempt(path["attempt"])


# of a body that is joined and decoded in a thread: what is wrong in one may take seconds to find
_LARGE_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024  # of an answer, handed to the transport at once
_NOBODY = Caller("")
_NOTHING = Nothing()


def _json_decoder(endpoint: Endpoint[Any, Any]) -> msgspec.json.Decoder[Any] | None:
    if isinstance(endpoint.body, Raw) or endpoint.body is Nothing:
        return None
    return msgspec.json.Decoder(endpoint.body)


async def read_body(request: Request, limit: int, lease: Lease) -> bytes:
    """The whole body, for which memory is leased first. Raises Malformed (naming the limit) as soon as more
    than `limit` bytes come or are announced, ServerUnavailable when there is no memory for it."""
    announced = _announced(request)
    if announced > limit:
        raise Malformed(f"the body has {announced} bytes, at most {limit} are taken here")
    await lease.announce(announced)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Malformed(f"the body has more than the {limit} bytes that are taken here")
        await lease.arrived(size)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return await asyncio.to_thread(b"".join, parts) if size > _LARGE_BYTES else b"".join(parts)


def _announced(request: Request) -> int:
    """The size of the body as its sender says; 0 where it does not."""
    said = request.headers.get("content-length", "")
    return int(said) if said.isdecimal() and len(said) <= 18 else 0


_DESCRIBED = ("GET /api/v1/openapi.json describes what is taken",)
_HINTS = {
    "` of length <=": "shorten it",
    "` of length >=": "it may not be empty: give it a value, or leave it out",
    "missing required field": "add it",
    "` <=": "give a smaller one",
    "` >=": "give a larger one",
}


def decode_json(data: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Raises Malformed, naming the path of what is wrong."""
    try:
        return decoder.decode(data or b"{}")
    except msgspec.ValidationError as bad:
        try:
            return whole_numbers.convert(data, decoder.type, bad)
        except msgspec.ValidationError as still:
            raise _malformed(still) from still
        except (msgspec.DecodeError, ValueError, RecursionError) as worse:
            # further on than the first thing that was wrong
            raise Malformed(f"the body is not JSON: {worse}", hints=_DESCRIBED) from worse
    except RecursionError:
        raise Malformed("the body is nested too deeply", hints=_DESCRIBED) from None
    except (msgspec.DecodeError, ValueError) as bad:
        raise Malformed(f"the body is not JSON: {bad}", hints=_DESCRIBED) from bad


def _malformed(bad: msgspec.ValidationError) -> Malformed:
    """The error with the path of what is wrong, and a rule where msgspec names the pattern only."""
    text = readable(str(bad))
    for pattern, (what, rule) in RULES.items():
        expected = f"expected `str` matching regex {pattern!r}"
        if text.endswith(expected):
            return Malformed(f"{text.removesuffix(expected)}it is not {what}", hints=(rule,))
    hint = next((hint for part, hint in _HINTS.items() if part in text), None)
    return Malformed(text, hints=_DESCRIBED if hint is None else (hint,))


def parse_query(request: Request, shape: type[Q]) -> Q:
    """The query as a struct. Raises Malformed, naming the parameter; a list of the known ones where it is
    unknown."""
    try:
        raw = request.scope["query_string"].decode("ascii")
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=64)
    except (ValueError, UnicodeDecodeError) as bad:
        raise Malformed("the query is not written as `name=value&…` in UTF-8") from bad
    known = _parameters(shape)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            raise Malformed(
                f"unknown parameter `{shown(name[:80])}`",
                hints=("this address takes " + (", ".join(known) or "none"),),
            )
        if known[name]:
            given.setdefault(name, []).append(value)
        elif given.setdefault(name, value) is not value:
            raise Malformed(f"the parameter `{name}` is given twice")
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as bad:
        raise _malformed(bad) from bad


def _parameters(shape: Any) -> Mapping[str, bool]:
    """The names that a query of this shape may have, and whether each may be given several times."""
    found = _KNOWN.get(shape)
    if found is None:
        fields = sorted(msgspec.structs.fields(shape), key=lambda field: field.encode_name)
        found = _KNOWN[shape] = {
            field.encode_name: _is_list(msgspec.inspect.type_info(field.type)) for field in fields
        }
    return found


def _is_list(kind: msgspec.inspect.Type) -> bool:
    return (
        _is_list(kind.type)
        if isinstance(kind, msgspec.inspect.Metadata)
        else isinstance(kind, msgspec.inspect.VarTupleType)
    )


_KNOWN: dict[Any, Mapping[str, bool]] = {}  # msgspec looks at the annotations again at each call
