"""The defaults of `visdom.Visdom` in a run with the address of the user's Visdom."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

from hopyard.domain.run_port import VISDOM_PORT, VISDOM_VARIABLE
from hopyard.sdk.startup import visdom_client

_PLACE = ("http://127.0.0.1", 4321, "/-/secret")


def _visdom() -> Any:
    """Returns a module with the constructor of Visdom 0.2.4 as far as it concerns the place."""

    class Visdom:
        def __init__(
            self,
            server: str = "http://localhost",
            endpoint: str = "events",
            port: int = 8097,
            base_url: str = "/",
            env: str = "main",
        ) -> None:
            self.place, self.other = (server, port, base_url), (endpoint, env)

    module = ModuleType("visdom")
    module.Visdom = Visdom  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("arguments", "options", "place"),
    [
        ((), {}, _PLACE),
        ((), {"env": "curves"}, _PLACE),
        (("localhost", "events", 8097), {"env": "curves"}, _PLACE),
        (("http://127.0.0.1",), {"port": "8097"}, _PLACE),
        (("http://box",), {}, ("http://box", 8097, "/")),
        ((), {"port": 8098}, ("http://localhost", 8098, "/")),
        ((), {"base_url": "/own"}, ("http://localhost", 8097, "/own")),
    ],
)
def test_only_the_default_place_is_replaced(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[Any, ...], options: dict[str, Any], place: object
) -> None:
    monkeypatch.setenv(VISDOM_VARIABLE, "http://127.0.0.1:4321/-/secret")
    module = _visdom()
    visdom_client.install(module)
    client = module.Visdom(*arguments, **options)
    assert (client.place, client.other) == (place, ("events", options.get("env", "main")))
    with pytest.raises(TypeError, match="colour"):
        module.Visdom(colour=1)


def test_run_without_visdom_keeps_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISDOM_VARIABLE, raising=False)
    module = _visdom()
    visdom_client.install(module)
    assert module.Visdom().place == ("http://localhost", VISDOM_PORT[1], "/")


def test_proxy_is_bypassed_for_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VISDOM_VARIABLE, "http://127.0.0.1:4321/-/secret")
    module = _visdom()
    visdom_client.install(module)
    module.Visdom()
    assert "no_proxy" not in os.environ
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "box")
    monkeypatch.setenv("no_proxy", "")
    for _ in range(2):
        module.Visdom()
        assert os.environ["no_proxy"] == "box,127.0.0.1"
