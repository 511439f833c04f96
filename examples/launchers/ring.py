"""Replicas that pass a number around a ring, with sockets alone.

    hop run --replicas 3 ring.py

Each replica has a name, an address, and a free port of its own.
"""

import json
import os
import socket
import time

hosts = json.loads(os.environ["HOPYARD_HOSTS"])
ports = json.loads(os.environ["HOPYARD_PEER_PORTS"])
names, own = list(hosts), os.environ["HOPYARD_REPLICA"]
following = names[(names.index(own) + 1) % len(names)]


def connect(name):
    while True:  # the other replica may start later
        try:
            return socket.create_connection((hosts[name], ports[name]), timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.05)


with socket.create_server((hosts[own], ports[own])) as server, connect(following) as to_next:
    from_previous, _ = server.accept()
    total = 0 if own == names[0] else int(from_previous.recv(16))
    to_next.sendall(str(total + 1).encode())
    if own == names[0]:
        print(f"{own}: {int(from_previous.recv(16))} replicas", flush=True)
    from_previous.close()
