"""Builds the study of a command line: `hop search -p lr=log:1e-4..1e-1 --metric val_loss train.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.client.build_run import build_request
from hopyard.client.feedback import Notify
from hopyard.config.metric_goal import infer_goal
from hopyard.config.search.range_line import is_searched, parse_search_words, value_texts
from hopyard.config.search.search_file import search_from_mapping
from hopyard.config.search.study_request import StudyRequest, driver_role
from hopyard.domain.ids import slug
from hopyard.domain.searchers import SEARCHERS, requires_trials
from hopyard.errors import SpecError, UsageError

_STUDY_OPTIONS = ("metric", "mode", "searcher", "trials", "epochs", "steps", "concurrent", "seed")
# options of a command line that a study file has as keys
FILE_KEYS = {
    **{name: name for name in ("metric", "mode", "searcher", "epochs", "steps", "concurrent", "project")},
    **{name: name for name in ("datasets", "env", "secrets", "tags", "requirements", "python", "time")},
    "metric_lines": "metric_lines",
    "on_end": "on_end",
    "params_as": "params_as",
    **{name: f"resources.{name}" for name in ("cpus", "memory", "gpus", "gpu_memory")},
}


def build_command_line_study(
    what: str, arguments: tuple[str, ...], folder: Path, options: dict[str, Any], *, notify: Notify
) -> StudyRequest:
    """Returns the study that searches the ranges of `-p`, with the script or command `what` as its trials.
    Raises SpecError, UsageError."""
    metric = options.get("metric")
    if not metric:
        raise UsageError(
            "--metric: missing",
            hints=("name the metric that the script reports, for example --metric val_loss",),
        )
    space = parse_search_words(options.get("params") or ())
    options = _with_epochs_of(space, options)
    if not any(map(is_searched, space.values())):
        raise UsageError(
            "-p: no parameter has a range, so there is nothing to search",
            hints=("for example -p lr=log:1e-4..1e-1 -p batch_size=16,32,64",),
        )
    _check_trials(options)
    mapping = {key: options[key] for key in _STUDY_OPTIONS if options.get(key) is not None}
    if not options.get("mode"):
        mapping["mode"] = _infer_mode(metric, notify)
    name = slug(options.get("label") or Path(what).stem, fallback="search")
    own = search_from_mapping(
        {**mapping, "space": space, "command": "true"}, folder, path="hop search", name=name
    )
    run_options = {key: value for key, value in options.items() if key not in ("params", "label")}
    trial = build_request(what, arguments, folder, run_options, notify=notify)
    run = replace(
        trial, roles=(driver_role(),), label=own.study.name, params={}, topology=None, time_limit_s=None
    )
    texts = value_texts(options.get("params") or ())
    trial = replace(trial, on_end=())  # the study notifies of its own end
    return StudyRequest(own.study, run, trial, own.new_keys, texts, own.has_default_searcher)


def _with_epochs_of(space: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with a fixed `-p epochs=3` as the budget: the study gives trials their epochs."""
    epochs = space.get("epochs")
    if epochs is None or is_searched(epochs) or type(epochs["value"]) is not int or options.get("steps"):
        return options
    if options.get("epochs") not in (None, epochs["value"]):
        raise UsageError(
            f"-p epochs={epochs['value']}: --epochs {options['epochs']} is another number of epochs",
            hints=("give one of the two",),
        )
    del space["epochs"]
    return {**options, "epochs": epochs["value"]}


def check_file_options(file: Path, options: Mapping[str, Any], arguments: tuple[str, ...]) -> None:
    """Raises UsageError for an option of the command line that a study file has as a key."""
    for name, key in FILE_KEYS.items():
        if options.get(name) not in (None, (), ""):
            raise UsageError(
                f"--{name.replace('_', '-')}: {file} describes the study",
                hints=(f"set `{key}` in the file",),
            )
    if arguments:
        raise UsageError(
            f"{arguments[0]}: {file} takes no arguments", hints=("write `arguments: […]` in the file",)
        )


def _infer_mode(metric: str, notify: Notify) -> str:
    goal = infer_goal(metric)
    if goal is None:
        raise SpecError(
            f"--mode: missing, and `{metric}` does not imply a direction",
            hints=("give --mode min or --mode max",),
        )
    notify(f"note: the study searches the {goal.value}imum of {metric} (--mode min|max changes this)")
    return goal.value


def _check_trials(options: Mapping[str, Any]) -> None:
    searcher = options.get("searcher") or "random"
    if options.get("trials") is None and searcher in SEARCHERS and requires_trials(searcher, {}):
        raise UsageError(
            f"--trials: missing; `{searcher}` proposes trials without end",
            hints=(
                "give their number, for example --trials 16",
                "or try every combination once: --searcher grid",
            ),
        )
