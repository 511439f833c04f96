"""`python -m hopyard.cli` is the command `hop`."""

from __future__ import annotations

from hopyard.cli.main import command

command()
