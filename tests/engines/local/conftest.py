"""The fixture of the tests of replicas."""

from __future__ import annotations

from tests.replica.conftest import run_scenario

__all__ = ["run_scenario"]
