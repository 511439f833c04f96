"""Opens a port of a run: checks the rights, and returns where it is reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from starlette.requests import Request

from hopyard.config.schemas.fields import RequestModel, full_match
from hopyard.domain.ids import RunId
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.run_port import PORT_NAME_PATTERN
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.ports.port_access import OPEN_ACTION, PortAccess
from hopyard.server.ports.port_address import PortAddress
from hopyard.server.ports.port_proxy import LINK_PATH
from hopyard.server.services import Services


class OpenPortIn(RequestModel):
    """port: its number or name. rank: of the replica."""

    port: Annotated[str, Meta(pattern=full_match(PORT_NAME_PATTERN), max_length=32)]
    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS)] = 0


class OpenPortOut(Struct, frozen=True):
    """number: of the port, as the run names it. path: for programs with a token; a request with
    `Upgrade: tcp` gets the bytes of the port. link: for a browser, valid once within a minute. It is "" where
    another machine reaches the server by an address in digits: a port needs a host name of its own."""

    number: int
    path: str
    link: str


def port_endpoints(services: Services, access: PortAccess) -> Sequence[Endpoint[Any, Any]]:
    async def open_port(request: ApiRequest[Empty, OpenPortIn]) -> OpenPortOut:
        """Open a port of a live run that you submitted, or as the owner of the server. The link sets a cookie
        for twelve hours."""
        address = PortAddress(RunId(request.path["id"]), request.body.port, request.body.rank)
        port = await access.check(address, request.caller)
        access.note_recorded(port)
        address = PortAddress(address.run, str(port.number), address.rank)
        host = _link_host(request.request, services.url) if address.host_label else ""
        link = ""
        if host:
            scheme = "https" if request.request.headers.get("x-forwarded-proto") == "https" else "http"
            secret = access.create_link(port, address)
            link = f"{scheme}://{address.host_label}.{host}{LINK_PATH}?ticket={secret}"
        return OpenPortOut(port.number, f"{address.path}/", link)

    return [
        Endpoint(
            "POST",
            "/runs/{id}/ports",
            open_port,
            body=OpenPortIn,
            returns=OpenPortOut,
            errors=(404, 409),
            audit=OPEN_ACTION,
        )
    ]


def _link_host(request: Request, url: str) -> str:
    """Returns the host below which the ports have their names; "" for an address in digits of another
    machine."""
    host = request.headers.get("host", "")
    parts = urlsplit(f"//{host}")
    local = f"localhost:{urlsplit(url).port}"
    if request.client is None or not parts.hostname:  # by the Unix socket of the home
        return local
    try:
        is_loopback = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        return host
    return f"localhost:{parts.port}" if is_loopback and parts.port else local if is_loopback else ""
