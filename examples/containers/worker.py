"""Sends a value to the store, which has its name on the network of the gang."""

import os
import socket
import time

address = "store-0", int(os.environ["MASTER_PORT"])
while True:
    try:
        connection = socket.create_connection(address)
        break
    except ConnectionRefusedError:  # it has not started yet
        time.sleep(0.1)
with connection:
    connection.sendall(f"42 from {socket.gethostname()}".encode())
