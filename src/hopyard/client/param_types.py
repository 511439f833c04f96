"""Checks values of parameters against the defaults of the script, before the run is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hopyard.config.key_values import Value
from hopyard.domain.param_format import ParamFormat, ParamStyle
from hopyard.domain.script_analysis.param_defaults import literal_defaults
from hopyard.domain.script_analysis.source_tree import ReadSource, read_sources
from hopyard.sdk.params import convert_override


def check_types(params: Mapping[str, Value], form: ParamFormat | None, read: ReadSource) -> None:
    """Raises SpecError for a value that `hop.params` of the script would refuse by its type. A script with
    defaults that are not literals is checked at its start alone. read: returns a file of the code."""
    if not params or form is None or form.style is not ParamStyle.SDK or not form.script.endswith(".py"):
        return
    defaults = literal_defaults(read_sources(form.script, read))
    for name, value in params.items():
        if name in defaults:
            convert_override(name, value, defaults[name])


def folder_reader(folder: Path) -> ReadSource:
    """Returns a function that reads the code in a folder."""

    def read(path: str) -> bytes | None:
        try:
            return (folder / path).read_bytes()
        except (OSError, ValueError):
            return None

    return read
