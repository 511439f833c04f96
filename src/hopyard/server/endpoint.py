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

from hopyard.config.schemas.fields import SECRET_NAME
from hopyard.config.schemas.validation_errors import InvalidValue, explain, sentence_problem
from hopyard.domain.access import Scope
from hopyard.domain.ids import ATTEMPT_PATTERN, DIGEST_PATTERN, NAME_PATTERN, RUN_ID_PATTERN
from hopyard.domain.text import escape
from hopyard.errors import AuthError, HopyardError, NotFound, RunEnded, ServerUnavailable
from hopyard.server import json_integers
from hopyard.server.audit import Auditor
from hopyard.server.authentication import Caller, TokenAuthenticator
from hopyard.server.body_memory import CLOSED_KEY, GIVE_UP_KEY, LONG_BODY_BYTES, BodyMemory, MemoryLease
from hopyard.server.rates import RateKind, UserRateLimits
from hopyard.server.responses import (
    MalformedRequest,
    error_response,
    json_response,
    log,
    simple_error_response,
)
from hopyard.server.user_locks import UserLocks

Q = TypeVar("Q")
B = TypeVar("B")
AuthKind = Literal["anyone", "user", "run", "study"]
BODY_LIMIT = 4 * 1024 * 1024  # of a JSON body


class Empty(msgspec.Struct, forbid_unknown_fields=True):
    """No query, or no body."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Q, B]):
    """One request, checked: the caller may ask this, and path, query and body have the declared shapes."""

    request: Request
    caller: Caller
    path: Mapping[str, str]
    query: Q
    body: B
    lease: MemoryLease  # what body and answer hold of the server's memory

    async def read_body(self, limit: int) -> bytes:
        """The whole body of an endpoint that takes bytes.
        Raises Malformed (naming the limit) as soon as more than `limit` bytes come."""
        return await read_body(self.request, limit, self.lease)


@dataclass(frozen=True, slots=True)
class BinaryBody:
    """A body or answer that is bytes and not JSON; `description` describes them."""

    description: str
    media_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, B]):
    """path: below `/api/v1`, with `{id}`-like parts of PATH_PARTS.

    auth: "user" needs a user's token; "run" takes also the token of the run that `{id}` or `{attempt}` names;
    "study" beside that the tokens of the study whose trial's run it is, and of one that continues that study,
    or this one. audit: what the audit log calls it; method and path give a name where it is left out.
    unaudited_reason: why a request that is no GET is not written there: it changes nothing, or only what runs
    report of themselves.
    scope: what a user's token must be good for; left out: READ for GET and HEAD, SUBMIT for all else. query,
    body: msgspec structs that the query and the JSON body must be. body as Raw: bytes that `handler` reads
    itself, within `limit`. handler: returns what is answered as JSON with `status`, or a Response of its own.
    is_heavy: it may compute for seconds, so each user has one such request answered at a time. returns: the
    type of the answer, for the description. other_statuses: good statuses with which `handler` answers that
    itself. errors: statuses that it may answer beside those every one may. rate: which rate of its user a
    request counts to, beside `requests`.
    """

    method: str
    path: str
    handler: Callable[[ApiRequest[Q, B]], Awaitable[Any]]
    query: type[Q] = Empty  # type: ignore[assignment]  # the default of a type parameter
    body: type[B] | BinaryBody = Empty  # type: ignore[assignment]
    returns: Any = Empty
    status: int = 200
    other_statuses: Sequence[int] = ()
    auth: AuthKind = "user"
    errors: Sequence[int] = ()
    limit: int = BODY_LIMIT
    tag: str = ""
    rate: RateKind = "requests"
    scope: Scope | None = None
    audit: str = ""
    unaudited_reason: str = ""
    is_heavy: bool = False

    @property
    def action(self) -> str:
        """What the audit log calls a request, as `run.stop`: `audit`, or what method and path say."""
        if self.audit:
            return self.audit
        first, *others = [part for part in self.path.strip("/").split("/") if not part.startswith("{")]
        verb = "_".join(others) or _VERBS.get(self.method, self.method.lower())
        return f"{first.removesuffix('s')}.{verb}"

    @property
    def is_audited_change(self) -> bool:
        """Whether it changes what the audit log has to tell."""
        return self.method not in ("GET", "HEAD") and not self.unaudited_reason

    @property
    def required_scope(self) -> Scope:
        """The scope that a user's token must have."""
        return self.scope or (Scope.READ if self.method in ("GET", "HEAD") else Scope.SUBMIT)

    @property
    def operation_id(self) -> str:
        """What generated clients call it."""
        return f"{self.method.lower()}_" + re.sub(r"\W+", "_", self.path.strip("/")).strip("_")

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()


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
_PATH_PATTERNS = {part: re.compile(pattern) for part, (pattern, _) in PATH_PARTS.items()}
# An id that an earlier version took, and today's rule does not, still names its run: else that could not be
# ended. No file is named by what passes here.
_PATH_PATTERNS["id"] = re.compile(r"[^\x00]{1,256}")


@dataclass(frozen=True, slots=True)
class RequestGuard:
    """What every request passes: who sent it, how many the user may send, how much memory bodies may take,
    and how long."""

    tokens: TokenAuthenticator
    rates: UserRateLimits
    bodies: BodyMemory
    audit: Auditor
    user_locks: UserLocks
    response_timeout_s: float  # in which an answer that holds memory must be read


class EndpointResource:
    """An ASGI application for one address: one endpoint per method."""

    def __init__(self, endpoints: Sequence[Endpoint[Any, Any]], guard: RequestGuard) -> None:
        self._by_method = {e.method: (e, _json_decoder(e)) for e in endpoints}
        self._allow = {"Allow": ", ".join(sorted(self._by_method))}
        self._tokens, self._request_guard = guard.tokens, guard

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        found = self._by_method.get(scope["method"])
        if found is None:
            refused = simple_error_response(
                405, "usage", f"this path does not support the method {scope['method']}", headers=self._allow
            )
            await refused(scope, receive, send)
            return
        started, sent = False, 0
        lease = self._request_guard.bodies.lease()

        async def passing(message: Message) -> None:
            """The transport refuses what is written after the client hung up, until the protocol hears of
            that."""
            try:
                await send(message)
            except RuntimeError:
                closed = scope.get("state", {}).get(CLOSED_KEY)
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
                patience.reschedule(
                    began + (1 + sent // LONG_BODY_BYTES) * self._request_guard.response_timeout_s
                )
            if len(body) <= _SEND_BYTES:
                await passing(message)
                return
            rest = memoryview(body)
            for at in range(0, len(rest), _SEND_BYTES):
                more = message.get("more_body", False) or at + _SEND_BYTES < len(rest)
                await passing(
                    {"type": "http.response.body", "body": rest[at : at + _SEND_BYTES], "more_body": more}
                )

        try:
            response = await self._respond(*found, Request(scope, receive), lease)
            began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(None) as patience:
                    await response(scope, receive, sending)
            except TimeoutError:
                if not patience.expired():
                    raise
                scope["state"][GIVE_UP_KEY]()
                # the connection is lost then, which the protocol has to know before this returns
                await asyncio.sleep(0)
        except HopyardError as error:
            if started:
                raise
            await error_response(error)(scope, receive, passing)
        except ClientDisconnect:
            return
        except Exception as failed:
            if started:
                raise
            if isinstance(failed, OSError) and failed.errno in (errno.EMFILE, errno.ENFILE):
                log.warning("%s %s: %s", scope["method"], scope["path"], failed)
                # of others a part may be done: their clients decide
                later = {"Retry-After": "1"} if scope["method"] == "GET" else {}
                await simple_error_response(
                    503, ServerUnavailable.code, "the server has no descriptors left", headers=later
                )(scope, receive, passing)
                return
            log.exception("%s %s failed", scope["method"], scope["path"])
            fault = simple_error_response(500, "error", "internal server error; see the log of the server")
            await fault(scope, receive, passing)
        finally:
            lease.release()

    async def _respond(
        self,
        endpoint: Endpoint[Any, Any],
        decoder: msgspec.json.Decoder[Any] | None,
        request: Request,
        lease: MemoryLease,
    ) -> Response:
        path: Mapping[str, str] = request.path_params
        caller = _ANONYMOUS
        try:
            if endpoint.auth != "anyone":
                caller = await self._tokens.authenticate(request.headers.get("authorization"))
                await self._check_permission(endpoint, caller, path)
            return await self._respond_to(caller, endpoint, decoder, request, lease)
        except RunEnded:  # a replica that reports after its end
            raise
        except AuthError as refused:
            await self._request_guard.audit.record_refusal(endpoint.action, request, caller, path, refused)
            raise

    async def _respond_to(
        self,
        caller: Caller,
        endpoint: Endpoint[Any, Any],
        decoder: msgspec.json.Decoder[Any] | None,
        request: Request,
        lease: MemoryLease,
    ) -> Response:
        path: Mapping[str, str] = request.path_params
        for part, value in path.items():
            if _PATH_PATTERNS[part].fullmatch(value) is None:
                raise NotFound(f"`{escape(value[:80])}` is not {PATH_PARTS[part][1]}")
        if endpoint.auth != "anyone":
            self._count_request(endpoint, caller, request)
        query = (
            _EMPTY
            if endpoint.query is Empty and not request.scope["query_string"]
            else parse_query(request, endpoint.query)
        )
        lease.user = caller.user
        data = None if decoder is None else await read_body(request, endpoint.limit, lease)
        async with self._request_guard.user_locks.hold(caller.user) if endpoint.is_heavy else nullcontext():
            if endpoint.is_heavy and await request.is_disconnected():  # it hung up while it waited
                raise ClientDisconnect
            body: Any = _EMPTY
            if decoder is not None and data is not None:
                body = (
                    await asyncio.to_thread(decode_json, data, decoder)
                    if len(data) > _LARGE_BYTES
                    else decode_json(data, decoder)
                )
            ask = ApiRequest(request, caller, path, query, body, lease)
            result = await (
                self._run_audited(endpoint, ask) if endpoint.is_audited_change else endpoint.handler(ask)
            )
        response = result if isinstance(result, Response) else json_response(result, endpoint.status)
        size = response.headers.get("content-length")
        if size is not None:  # one without is read while it is sent, and holds what it asked for
            lease.set_response_size(int(size), required=not endpoint.is_audited_change)
        return response

    async def _run_audited(self, endpoint: Endpoint[Any, Any], request: ApiRequest[Any, Any]) -> Any:
        """Make a change together with its record in the audit log."""
        audit, asked = self._request_guard.audit, (request.query, request.body)
        # A run tells by itself who submitted it, and thousands a second are accepted: they need not wait for
        # another commit.
        if endpoint.rate == "submissions":
            result = await endpoint.handler(request)
            audit.record_change(endpoint.action, request.request, request.caller, asked, result)
            return result
        return await audit.run_audited(
            endpoint.action,
            request.request,
            request.caller,
            request.path,
            asked,
            lambda: endpoint.handler(request),
        )

    def _count_request(self, endpoint: Endpoint[Any, Any], caller: Caller, request: Request) -> None:
        """Raises TooManyRequests."""
        rates = self._request_guard.rates
        rates.take_or_raise(caller.user, "requests")
        if endpoint.rate == "submissions":
            rates.take_or_raise(caller.user, "submissions")
        elif endpoint.rate == "upload_bytes":
            rates.take_or_raise(caller.user, "upload_bytes", _announced_size(request))

    async def _check_permission(
        self, endpoint: Endpoint[Any, Any], caller: Caller, path: Mapping[str, str]
    ) -> None:
        """Raises Forbidden unless the caller may ask this."""
        caller.require_scope(endpoint.required_scope)
        if caller.run is not None:
            if endpoint.auth not in ("run", "study"):
                caller.require_user()
            if "id" in path and endpoint.auth == "study":
                await self._tokens.require_same_study(caller, path["id"])
            elif "id" in path:
                caller.require_run(path["id"])
            if "attempt" in path:
                caller.require_attempt(path["attempt"])


# of a body that is joined and decoded in a thread: what is wrong in one may take seconds to find
_LARGE_BYTES = 256 * 1024
_SEND_BYTES = 64 * 1024  # of an answer, handed to the transport at once
_ANONYMOUS = Caller("")
_EMPTY = Empty()


def _json_decoder(endpoint: Endpoint[Any, Any]) -> msgspec.json.Decoder[Any] | None:
    if isinstance(endpoint.body, BinaryBody) or endpoint.body is Empty:
        return None
    return msgspec.json.Decoder(endpoint.body)


async def read_body(request: Request, limit: int, lease: MemoryLease) -> bytes:
    """The whole body, for which memory is leased first. Raises Malformed (naming the limit) as soon as more
    than `limit` bytes come or are announced, ServerUnavailable when there is no memory for it."""
    announced = _announced_size(request)
    if announced > limit:
        raise MalformedRequest(f"the body has {announced} bytes, at most {limit} are allowed")
    await lease.announce_size(announced)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise MalformedRequest(f"the body exceeds the {limit} bytes that are allowed")
        await lease.add_received(size)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return await asyncio.to_thread(b"".join, parts) if size > _LARGE_BYTES else b"".join(parts)


def _announced_size(request: Request) -> int:
    """The size of the body as its sender says; 0 where it does not."""
    said = request.headers.get("content-length", "")
    return int(said) if said.isdecimal() and len(said) <= 18 else 0


_DESCRIBED_HINT = ("see GET /api/v1/openapi.json for the schema",)


def decode_json(data: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Raises Malformed, naming the path of what is wrong."""
    try:
        return decoder.decode(data or b"{}")
    except msgspec.ValidationError as bad:
        try:
            return json_integers.convert_json(data, decoder.type, bad)
        except msgspec.ValidationError as still:
            raise _to_malformed(_explain_body(still, data, decoder.type)) from still
        except (msgspec.DecodeError, ValueError, RecursionError) as worse:
            # further on than the first thing that was wrong
            raise MalformedRequest(f"the body is not JSON: {worse}", hints=_DESCRIBED_HINT) from worse
    except RecursionError:
        raise MalformedRequest("the body is nested too deeply", hints=_DESCRIBED_HINT) from None
    except (msgspec.DecodeError, ValueError) as bad:
        raise MalformedRequest(f"the body is not JSON: {bad}", hints=_DESCRIBED_HINT) from bad


def _explain_body(error: msgspec.ValidationError, data: bytes, shape: Any) -> InvalidValue:
    try:
        return explain(error, msgspec.json.decode(data or b"{}"), shape)
    except (msgspec.DecodeError, ValueError, RecursionError):  # not JSON beyond what msgspec refused first
        return sentence_problem(error)


def _to_malformed(problem: InvalidValue) -> MalformedRequest:
    return MalformedRequest(problem.message(), hints=problem.hints or _DESCRIBED_HINT)


def parse_query(request: Request, shape: type[Q]) -> Q:
    """The query as a struct. Raises Malformed, naming the parameter; a list of the known ones where it is
    unknown."""
    try:
        raw = request.scope["query_string"].decode("ascii")
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=64)
    except (ValueError, UnicodeDecodeError) as bad:
        raise MalformedRequest("the query is not of the form `name=value&…` in UTF-8") from bad
    known = _query_parameters(shape)
    given: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            raise MalformedRequest(
                f"unknown parameter `{escape(name[:80])}`",
                hints=("this address takes " + (", ".join(known) or "none"),),
            )
        if known[name]:
            given.setdefault(name, []).append(value)
        elif given.setdefault(name, value) is not value:
            raise MalformedRequest(f"the parameter `{name}` is given twice")
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as bad:
        raise _to_malformed(explain(bad, given, shape, strict=False)) from bad


def _query_parameters(shape: Any) -> Mapping[str, bool]:
    """The names that a query of this shape may have, and whether each may be given several times."""
    found = _PARAMETER_CACHE.get(shape)
    if found is None:
        fields = sorted(msgspec.structs.fields(shape), key=lambda field: field.encode_name)
        found = _PARAMETER_CACHE[shape] = {
            field.encode_name: _is_list_type(msgspec.inspect.type_info(field.type)) for field in fields
        }
    return found


def _is_list_type(type_info: msgspec.inspect.Type) -> bool:
    return (
        _is_list_type(type_info.type)
        if isinstance(type_info, msgspec.inspect.Metadata)
        else isinstance(type_info, msgspec.inspect.VarTupleType)
    )


_PARAMETER_CACHE: dict[Any, Mapping[str, bool]] = {}  # msgspec looks at the annotations again at each call
