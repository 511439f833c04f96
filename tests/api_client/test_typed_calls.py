"""Every caller of the API outside of its client uses the typed methods of `Client`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import modules

ROOMS = ("cli", "client", "mop_runtime", "replica", "sdk", "spark", "studies", "study_app")
OTHER_API = ("replica", "container")  # requests to Docker or Podman
RAW_METHODS = {"call", "get", "post", "patch", "delete", "iterate_pages"}


def raw_calls(tree: ast.AST) -> Iterator[int]:
    """Yields the line of each request by a path, such as `client.get(f"/runs/{run}")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            paths = [part for part in node.args[:2] if ast.unparse(part).lstrip("f'\"").startswith("/")]
            if node.func.attr in RAW_METHODS and paths:
                yield node.lineno


def test_requests_use_typed_methods() -> None:
    found = [
        f"{path}:{line}"
        for path, tree in modules().items()
        if path.parts[0] in ROOMS and path.parts[:2] != OTHER_API
        for line in raw_calls(tree)
    ]
    assert not found, "use a method of hopyard.api_client.client.Client"


def test_raw_calls_are_found() -> None:
    for code in (
        'client.get("/runs")',
        'client.call("PUT", f"/secrets/{name}")',
        'api.post(f"/runs/{x}", {})',
    ):
        assert list(raw_calls(ast.parse(code)))
    assert not list(raw_calls(ast.parse('client.get_run(run); env.get("PATH"); client.open("GET", "/x")')))
