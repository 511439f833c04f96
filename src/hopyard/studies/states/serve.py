"""States between hosts: each worker, and the driver, serves those on its shelf by name, and fetches others' with a check of their
digest.

    fetch {state}   -> state {bytes}, the bytes as payload; then digest {digest}, of those bytes, or refused {error}
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hopyard.errors import AuthError, HopyardError, IntegrityError, NotFound
from hopyard.studies.link.proof import connect
from hopyard.studies.link.wire import Wire
from hopyard.studies.states.digest import new, digest
from hopyard.studies.states.shelf import Shelf

log = logging.getLogger("hopyard.studies.states")

_PART_BYTES = 4 << 20
