"""The links of ports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hopyard.domain.ids import RunId
from hopyard.errors import AuthError
from hopyard.server.authentication import Caller
from hopyard.server.ports.port_access import LINK_LIFETIME, PortAccess
from hopyard.server.ports.port_address import PortAddress

ADDRESS = PortAddress(RunId("r" + "0" * 20), "8080")
PORT: Any = SimpleNamespace(caller=Caller("alice", token="t"))


def test_oldest_link_is_evicted_and_the_others_stay_valid() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    services: Any = SimpleNamespace(
        now=lambda: now[0], tokens=SimpleNamespace(keys=SimpleNamespace(current_secret=b"k"))
    )
    access = PortAccess(services)
    links = [access.create_link(PORT, ADDRESS) for _ in range(4097)]
    with pytest.raises(AuthError):
        access.use_link(links[0], ADDRESS)
    for link in (links[1], links[-1]):
        assert access.use_link(link, ADDRESS).endswith(".t.alice")
    now[0] += LINK_LIFETIME + timedelta(seconds=1)
    with pytest.raises(AuthError):
        access.use_link(links[2], ADDRESS)
