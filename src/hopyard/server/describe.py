"""Writes the OpenAPI description without a server: `python -m hopyard.server.describe > openapi.json`."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

from hopyard import __version__
from hopyard.server.answers import encode
from hopyard.server.api import BASE, endpoints
from hopyard.server.openapi import describe
from hopyard.server.parts import Parts


class _Unused:
    """Stands for parts that no request will ever reach."""

    def __getattr__(self, name: str) -> _Unused:
        return self


def description() -> dict[str, Any]:
    """What `GET /api/v1/openapi.json` answers."""
    found: dict[str, Any] = json.loads(
        encode(describe(endpoints(cast(Parts, _Unused())), version=__version__, base=BASE))
    )
    return found


def main() -> int:
    print(json.dumps(description(), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
