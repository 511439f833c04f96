"""Connects `visdom.Visdom()` to the Visdom server of the run's user, at the address that the replica
has given."""

from __future__ import annotations

import os
from functools import wraps
from inspect import signature

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_VARIABLE = "HOPYARD_VISDOM"  # `domain.run_port` has it
_DEFAULTS = {"server": "http://localhost", "port": 8097, "base_url": "/"}  # those of Visdom
_HOST = "127.0.0.1"


def install(module: ModuleType) -> None:
    """Replaces the defaults of the client. A script that names another server, port or path gets that."""
    address = os.environ.get(_VARIABLE, "")
    client = getattr(module, "Visdom", None)
    if not address or client is None:
        return
    host, _, rest = address.rpartition(":")
    port, _, path = rest.partition("/")
    places = {"server": host, "port": int(port), "base_url": "/" + path}
    create = client.__init__

    @wraps(create)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        given = signature(create).bind_partial(self, *arguments, **options).arguments
        if _is_default({name: given.get(name, default) for name, default in _DEFAULTS.items()}):
            _bypass_proxy(_HOST)
            create(**{**given, **places})
        else:
            create(self, *arguments, **options)

    client.__init__ = __init__


def _is_default(values: dict[str, Any]) -> bool:
    """Returns whether these name the place that Visdom has by default: also scripts that pass it."""
    server = str(values["server"]).rstrip("/").rpartition("//")[2]
    is_local = server in ("localhost", _HOST)
    return is_local and str(values["port"]) == str(_DEFAULTS["port"]) and values["base_url"] in ("/", "")


def _bypass_proxy(host: str) -> None:
    """Adds the host to those that this process reaches without the proxy of the machine."""
    if any(name.lower() in ("http_proxy", "all_proxy") for name in os.environ):
        hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
        if host not in hosts.replace(" ", "").split(","):
            os.environ["no_proxy"] = ",".join(filter(None, (hosts, host)))
