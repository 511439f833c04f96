"""`python -m hopyard.sdk.objective FILE.py:FUNCTION METRIC`: the command of a trial with a function as
its objective (`hop.search(objective, …)`)."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hopyard.errors import SpecError
from hopyard.sdk.api import log, params
from hopyard.sdk.params import read_overrides


def main(arguments: list[str]) -> None:
    reference, metric = arguments
    file, _, name = reference.partition(":")
    sys.path.insert(0, os.getcwd())
    module = importlib.import_module(".".join(Path(file).with_suffix("").parts))
    run_objective(getattr(module, name), metric)


def run_objective(function: Callable[..., Any], metric: str) -> None:
    """Calls the function with the parameters of this run, and logs what it returns or yields.

    A function with one parameter that is none of the run's gets all of them as one object, like that of
    `hop.params`. Otherwise it gets those that it names. A result is a number (the metric) or a dictionary of
    metrics.
    """
    given = read_overrides(os.environ.get("HOPYARD_PARAMS"))
    names = _named_parameters(function, given)
    result = function(params(**given)) if names is None else function(**_declare(given, names))
    if not inspect.isgenerator(result):
        log(_metrics_of(result, metric), step=None) if result is not None else None
        return
    for step, value in enumerate(result, 1):
        log(_metrics_of(value, metric), step=step)


def _declare(given: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return dict(params(**{name: value for name, value in given.items() if name in names}))


def _named_parameters(function: Callable[..., Any], given: Mapping[str, Any]) -> set[str] | None:
    """Returns the names of the parameters that the function takes; None if it takes all as one object."""
    parameters = inspect.signature(function).parameters
    if len(parameters) == 1 and not set(parameters) & set(given):
        (only,) = parameters.values()
        if only.kind is not inspect.Parameter.VAR_KEYWORD:
            return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return set(given)
    return set(parameters)


def _metrics_of(value: Any, metric: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (str, bytes, Iterator)) or value is None:
        raise SpecError(
            f"the objective returned {json.dumps(str(value))[:60]}, which is no number",
            hints=(f"return the value of `{metric}`, or a dictionary with it",),
        )
    return {metric: value}


if __name__ == "__main__":
    main(sys.argv[1:])
