"""The addresses of the ports of runs on this server: a path for programs, and a host name for browsers.

Programs use `/runs/ID/ports/8888/` with a token. A page in a browser has a host name of its own,
`p8888-ID.localhost`, and so an origin of its own: it can act neither for the server nor for another run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopyard.domain.ids import RUN_ID_PATTERN, RunId
from hopyard.domain.run_port import PORT_NAME_PATTERN

_PATH = re.compile(
    rf"/runs/(?P<run>{RUN_ID_PATTERN})(?:/ranks/(?P<rank>[0-9]{{1,6}}))?"
    rf"/ports/(?P<port>{PORT_NAME_PATTERN})(?P<rest>/.*|)"
)
_LABEL = re.compile(rf"p(?P<port>[1-9][0-9]{{0,4}})(?:r(?P<rank>[0-9]{{1,6}}))?-(?P<run>{RUN_ID_PATTERN})")
_MAX_LABEL_LENGTH = 63
PATH_PREFIX = "/runs/"


@dataclass(frozen=True, slots=True)
class PortAddress:
    """A port of one replica of a run. port: its number or name."""

    run: RunId
    port: str
    rank: int = 0

    @property
    def path(self) -> str:
        """The path for programs, without a slash at the end."""
        rank = f"/ranks/{self.rank}" if self.rank else ""
        return f"{PATH_PREFIX}{self.run}{rank}/ports/{self.port}"

    @property
    def host_label(self) -> str:
        """The first label of its host name; "" for a run without one, since its id is no part of a host."""
        label = f"p{self.port}{f'r{self.rank}' if self.rank else ''}-{self.run}"
        return label if label == label.lower() and len(label) <= _MAX_LABEL_LENGTH else ""


def split_port_host(host: str) -> tuple[PortAddress | None, str]:
    """Returns the address that the host name of a request names, and the rest of the host: `localhost:8080`
    of `p8888-ID.localhost:8080`. Returns None for the server's own host."""
    label, dot, rest = host.partition(".")
    found = _LABEL.fullmatch(label.lower()) if dot and label.startswith(("p", "P")) else None
    if found is None:
        return None, host
    return PortAddress(RunId(found["run"]), found["port"], int(found["rank"] or 0)), rest


def split_port_path(raw_path: str) -> tuple[PortAddress, str] | None:
    """Returns the address that the path of a request names, and the part of the path that names it; None for
    another path. The path behind it is empty, or begins with a slash."""
    found = _PATH.fullmatch(raw_path)
    if found is None:
        return None
    address = PortAddress(RunId(found["run"]), found["port"], int(found["rank"] or 0))
    return address, raw_path[: found.start("rest")]
