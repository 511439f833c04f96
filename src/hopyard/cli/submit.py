"""Packs the code, sends what the server lacks, and submits a run exactly once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.cli import console
from hopyard.cli.address import Run
from hopyard.cli.gitstate import GitProbe
from hopyard.cli.interpreter import caller_interpreter, installed_packages
from hopyard.config.runspec import RunRequest
from hopyard.domain.ids import new_run_id
from hopyard.errors import MissingBlobs, SpecError
from hopyard.sdk.client import Client

_LARGE_BYTES, _MANY_FILES = 200 * 1024 * 1024, 20_000
_ROUNDS = 5  # of uploads: blobs may be swept, or be damaged, between the answer and the next try
