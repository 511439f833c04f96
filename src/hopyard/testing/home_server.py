"""An HTTP server of the standard library on the Unix socket of a home."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hopyard.api_client.home_socket import listen
from hopyard.config.home import Home


class HomeServer(ThreadingHTTPServer):
    """Listens from construction until `server_close`."""

    daemon_threads = True

    def __init__(self, home: Home, routes: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("", 0), routes, bind_and_activate=False)
        self.socket.close()
        listener = listen(home.create())
        assert listener is not None, "this file system has no sockets"
        self.socket: socket.socket = listener
