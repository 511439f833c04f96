"""The HTTP server: uvicorn over TCP and over the Unix socket of the home."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable

import uvicorn

from hopyard.config.descriptor_limit import descriptor_limit
from hopyard.config.settings import ServerSettings
from hopyard.server.connections import Connections, backlog_for
from hopyard.server.ports.port_proxy import PortProxy
from hopyard.server.protocol import AllowedHosts, protocol_factory
from hopyard.server.services import Services
from hopyard.server.unix_socket import OwnerOnlyProtocol

GRACEFUL_S = 5


class HttpServer(uvicorn.Server):
    """uvicorn without its ten wake-ups per second and without its signal handlers."""

    def __init__(
        self,
        app: PortProxy,
        services: Services,
        end_event: asyncio.Event,
        *,
        settings: ServerSettings,
        withdraw: Callable[[], None],
    ) -> None:
        connections, local = (
            Connections(settings.limits, descriptors=descriptor_limit(), local=local)
            for local in (False, True)
        )
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=protocol_factory(connections, local, AllowedHosts(settings.hosts)),
                headers=[("X-Content-Type-Options", "nosniff")],
                ws="none",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                log_level="warning",
                date_header=False,
                server_header=False,
                timeout_keep_alive=math.ceil(settings.limits.idle_timeout_s),
                timeout_graceful_shutdown=GRACEFUL_S,
                backlog=backlog_for(descriptor_limit()),
            )
        )
        self._services, self._ports, self._end_event, self._withdraw = services, app, end_event, withdraw
        self.accepting_requests = asyncio.Event()

    async def add_unix_socket(self, listen_socket: socket.socket) -> None:
        """Serves the Unix socket of the home as well."""

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(self.config, self.server_state, self.lifespan.state)  # type: ignore[call-arg]

        self.servers.append(
            await asyncio.get_running_loop().create_unix_server(
                lambda: OwnerOnlyProtocol(protocol), sock=listen_socket
            )
        )

    async def main_loop(self) -> None:
        self.server_state.default_headers = self.config.encoded_headers
        self.accepting_requests.set()
        await self._end_event.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # first, so that a client that loses its connection can already read that the server ended on purpose
        self._withdraw()
        self._services.subscriptions.close()  # followers then end by themselves
        self._services.events.close()
        self._ports.close()
        await super().shutdown(sockets)
