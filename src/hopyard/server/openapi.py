"""The OpenAPI description, generated from the declarations that serve the requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hopyard.server.endpoint import PATH_PARTS, BinaryBody, Empty, Endpoint
from hopyard.server.responses import ErrorBody

_SCHEMA_REF = "#/components/schemas/{name}"
_TOKEN_DESCRIPTION = (
    "A user's token has scopes, each of which includes those before it: `read`, `submit`, `admin`. An "
    "operation names the one that it needs. The token of a run is valid until that run has ended."
)
_STATUS_DESCRIPTIONS = {
    400: "invalid request; the hints name the remedy",
    401: "no token, or an invalid token",
    403: "the token or its user lacks the permission",
    404: "not found",
    408: "the request did not arrive in time",
    409: "conflict: the state changed meanwhile, or blobs are missing; read the state again and retry",
    414: "the address is too long",
    416: "the content has none of the requested bytes; `Content-Range` has its size",
    421: "unknown host name: the server does not accept this `Host` header",
    422: "the request or its bytes do not match the schema",
    429: "rate limit of the user; `Retry-After` says when to retry",
    431: "the headers are too large",
    500: "the server failed",
    503: "temporarily unavailable; `Retry-After` says when to retry",
    507: "no space left on the disk, or in the storage quota of the user",
}
# for requests that are refused before they reach an endpoint: invalid HTTP, a timeout, an unknown host
_COMMON_STATUSES = (400, 408, 414, 421, 431, 503)


def describe_api(endpoints: Sequence[Endpoint[Any, Any]], *, version: str, base: str) -> dict[str, Any]:
    """Returns the complete description as a JSON value."""
    shapes = [ErrorBody]
    for endpoint in endpoints:
        shapes += [
            shape
            for shape in (endpoint.body, endpoint.returns, endpoint.query)
            if not isinstance(shape, BinaryBody)
        ]
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_SCHEMA_REF)
    schema_of = {id(shape): schema for shape, schema in zip(shapes, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(base + endpoint.path, {})
        operations[endpoint.method.lower()] = _operation(endpoint, schema_of, components)
    # the fields of a query are parameters, so it needs no schema of its own
    for query in {endpoint.query.__name__ for endpoint in endpoints} - {Empty.__name__}:
        components.pop(query, None)
    components[Empty.__name__].pop("description", None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hopyard",
            "version": version,
            "description": "Runs, datasets, streams and leaderboards.",
        },
        "paths": paths,
        "components": {
            "schemas": _normalise(components),
            "responses": _error_responses(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": _TOKEN_DESCRIPTION}
            },
        },
    }


def _operation(
    endpoint: Endpoint[Any, Any], schema_of: Mapping[int, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    # the first sentence, independent of line breaks
    first, *description = re.split(r"(?<=\.) ", " ".join(endpoint.summary.split()), maxsplit=1)
    operation: dict[str, Any] = {"operationId": endpoint.operation_id, "summary": first}
    if description:
        operation["description"] = description[0]
    if endpoint.tag:
        operation["tags"] = [endpoint.tag]
    operation["security"] = [] if endpoint.auth == "anyone" else [{"token": [endpoint.required_scope]}]
    parameters = [*_path_parameters(endpoint.path), *_query_parameters(endpoint, components)]
    if parameters:
        operation["parameters"] = parameters
    if isinstance(endpoint.body, BinaryBody):
        content = {endpoint.body.media_type: {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {
            "required": True,
            "description": endpoint.body.description,
            "content": content,
        }
    elif endpoint.body is not Empty:
        is_required = bool(components.get(endpoint.body.__name__, {}).get("required"))
        content = {"application/json": {"schema": _normalise(schema_of[id(endpoint.body)])}}
        operation["requestBody"] = {"required": is_required, "content": content}
    operation["responses"] = _responses(endpoint, schema_of)
    return operation


def _responses(endpoint: Endpoint[Any, Any], schema_of: Mapping[int, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "done"}
    if isinstance(endpoint.returns, BinaryBody):
        success = {
            "description": endpoint.returns.description,
            "content": {endpoint.returns.media_type: {"schema": {"type": "string"}}},
        }
        if endpoint.returns.headers:
            success["headers"] = {
                name: {"description": description, "schema": {"type": "integer"}}
                for name, description in endpoint.returns.headers.items()
            }
    else:
        success["content"] = {"application/json": {"schema": _normalise(schema_of[id(endpoint.returns)])}}
    responses = {str(status): success for status in sorted({endpoint.status, *endpoint.other_statuses})}
    for status in sorted(set(endpoint.errors) | set(_error_statuses(endpoint))):
        responses[str(status)] = {"$ref": f"#/components/responses/error_{status}"}
    return responses


def _error_responses() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _SCHEMA_REF.format(name=ErrorBody.__name__)}}}
    return {
        f"error_{status}": {"description": meaning, "content": content}
        for status, meaning in _STATUS_DESCRIPTIONS.items()
    }


def _error_statuses(endpoint: Endpoint[Any, Any]) -> Iterable[int]:
    yield from _COMMON_STATUSES
    yield 422  # a parameter or body that does not match its schema
    if endpoint.auth != "anyone":
        yield from (401, 403, 429)
    if "{" in endpoint.path:
        yield 404


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for part in re.findall(r"\{(\w+)\}", path):
        pattern, description = PATH_PARTS[part]
        schema = {"type": "string", "pattern": f"^({pattern})$"}
        yield {"name": part, "in": "path", "required": True, "description": description, "schema": schema}


def _query_parameters(
    endpoint: Endpoint[Any, Any], components: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    if endpoint.query is Empty:
        return
    shape = components[endpoint.query.__name__]
    for name, schema in shape["properties"].items():
        # A query has no null: an optional parameter is omitted instead.
        options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
        plain = dict(options[0])
        if "default" in schema and schema["default"] is not None:
            plain["default"] = schema["default"]
        if "description" in schema:
            plain.setdefault("description", schema["description"])
        yield {
            "name": name,
            "in": "query",
            "required": name in shape.get("required", ()),
            "schema": _normalise(plain),
        }


# Patterns of JSON Schema are JavaScript's. There, `$` matches only the end of the text, and `\\Z` does not
# exist.
_TEXT_NORMALISERS: Mapping[str, Callable[[str], str]] = {
    "description": lambda text: re.sub(r"\s+", " ", text),
    "pattern": lambda text: re.sub(r"\\Z\Z", "$", text),
}


def _normalise(schema: Any) -> Any:
    """Puts docstrings on one line and converts tuples to lists, so that the description is identical on every
    machine."""
    if isinstance(schema, Mapping):
        return {
            key: _TEXT_NORMALISERS[key](value)
            if key in _TEXT_NORMALISERS and isinstance(value, str)
            else _normalise(value)
            for key, value in schema.items()
        }
    if isinstance(schema, (list, tuple)):
        return [_normalise(item) for item in schema]
    if isinstance(schema, msgspec.Struct):
        return _normalise(msgspec.to_builtins(schema))
    return schema
