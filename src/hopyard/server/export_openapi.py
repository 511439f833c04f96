"""Writes the OpenAPI description without a server: `python -m hopyard.server.export_openapi >
openapi.json`."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

from hopyard import __version__
from hopyard.server.api import API_PREFIX, all_endpoints
from hopyard.server.openapi import describe_api
from hopyard.server.responses import encode
from hopyard.server.services import Services


class _Placeholder:
    """Replaces services that no request reaches."""

    def __getattr__(self, name: str) -> _Placeholder:
        return self


def openapi_document() -> dict[str, Any]:
    """Returns the document of `GET /api/v1/openapi.json`."""
    document: dict[str, Any] = json.loads(
        encode(
            describe_api(all_endpoints(cast(Services, _Placeholder())), version=__version__, base=API_PREFIX)
        )
    )
    return document


def main() -> int:
    print(json.dumps(openapi_document(), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
