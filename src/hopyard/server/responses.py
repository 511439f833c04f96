"""Responses: JSON values, and one schema for all errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from hopyard.errors import HopyardError, MissingBlobs, ServerUnavailable, SpecError

log = logging.getLogger("hopyard.server")
_ENCODER = msgspec.json.Encoder()
JSON = "application/json"

STATUS_BY_CODE: Mapping[str, int] = {
    "bad_spec": 400,
    "usage": 400,
    "does_not_fit": 400,
    "not_authorised": 401,
    "run_over": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "missing_blobs": 409,
    "blobs_elsewhere": 409,
    "damaged": 422,
    "storage_full": 507,
    "quota_exceeded": 507,
    "too_many_requests": 429,
    "server_unavailable": 503,
    "server_fault": 503,
    "engine": 500,
    "port_unreachable": 502,
    "console_unreachable": 502,
    "launch_failed": 500,
    "study_failed": 500,
    "workers_lost": 500,
}


class ErrorDetail(msgspec.Struct):
    """code: the stable error code that clients match on. hints: the next steps for the user. digests: only
    for `missing_blobs`."""

    code: str
    message: str
    hints: list[str] = msgspec.field(default_factory=list)
    digests: list[str] | msgspec.UnsetType = msgspec.UNSET


class ErrorBody(msgspec.Struct):
    """The body of every response with a status of 400 and above."""

    error: ErrorDetail


class MalformedRequest(SpecError):
    """The request does not match the API's description. It has the code of SpecError, and status 422."""


def encode(value: Any) -> bytes:
    """Encodes domain values and wire structs as JSON. Times are in RFC 3339, UTC; numbers that are not finite
    become null."""
    return _ENCODER.encode(value)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_ENCODER.encode(value), status_code=status, media_type=JSON)


def error_response(error: HopyardError) -> Response:
    status = 422 if isinstance(error, MalformedRequest) else STATUS_BY_CODE.get(error.code, 500)
    digests = list(error.digests) if isinstance(error, MissingBlobs) else msgspec.UNSET
    response = json_response(
        ErrorBody(ErrorDetail(error.code, error.message, list(error.hints), digests)), status
    )
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, ServerUnavailable) and error.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return response


def encode_error(code: str, message: str, hints: Sequence[str] = ()) -> bytes:
    """Returns the body of an error response."""
    return _ENCODER.encode(ErrorBody(ErrorDetail(code, message, list(hints))))


def simple_error_response(
    status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns an error response without an exception: for an unknown path or method, or a fault inside the
    server."""
    response = json_response(ErrorBody(ErrorDetail(code, message)), status)
    response.headers.update(headers or {})
    return response
