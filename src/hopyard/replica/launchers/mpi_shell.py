"""The remote shell of `mpirun`: `mpi_shell HOST COMMAND...` has the agent of a replica run the command."""

from __future__ import annotations

import json
import os
import sys

from hopyard.replica.launchers.mpi_agent import EXITED, OUTPUT, START
from hopyard.replica.launchers.mpi_channel import ChannelRefused, connect
from hopyard.replica.launchers.mpi_plan import read_plan

_FAILED = 255  # as ssh


def main(arguments: list[str]) -> int:
    while arguments and arguments[0].startswith("-"):  # options of ssh
        del arguments[0]
    plan = read_plan()
    peer = plan.peer(arguments[0]) if arguments else None
    if peer is None:
        print(f"hopyard: mpi: no replica {' '.join(arguments[:1])!r} in this gang", file=sys.stderr)
        return _FAILED
    request = {"kind": START, "command": " ".join(arguments[1:])}
    try:
        channel = connect(peer.address, peer.port, plan.secret, request)
    except (OSError, ChannelRefused) as error:
        print(f"hopyard: mpi: cannot reach {peer.name}: {error}", file=sys.stderr)
        return _FAILED
    while True:
        kind, data = channel.receive()
        if kind == OUTPUT:
            os.write(2, data)
        elif kind == EXITED:
            code = int(json.loads(data))
            return code if code >= 0 else 128 - code
        elif not kind:
            return _FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
