"""Receives one value from the worker, and prints it."""

import os
import socket

with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
    connection, _ = server.accept()
    with connection:
        print("received", connection.recv(100).decode())
