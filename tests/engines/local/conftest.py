"""The bench that a replica's tests run on."""

from __future__ import annotations

from tests.replica.conftest import play

__all__ = ["play"]
