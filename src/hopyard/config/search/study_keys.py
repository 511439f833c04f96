"""Maps fields of a study's spec to keys of a search file: `study.max_epochs` is written `epochs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.config.search.study_request import StudyRequest
from hopyard.config.spec_keys import check_file_spec, role_keys, run_keys
from hopyard.config.yaml_section import YamlSection
from hopyard.domain.study import BudgetUnit
from hopyard.errors import SpecError

_MOP_KEYS = {"unit_timeout_s": "unit_timeout"}


def check_study_request(top: YamlSection, request: StudyRequest) -> None:
    """Checks the study that was read from `top` as the server does.
    Raises SpecError with the file and the path in it."""
    spec = request.spec(code=None, git=None, environment={"python": request.run.python})

    def keys_of(spec: Mapping[str, Any], path: list[str]) -> list[str]:
        return _study_keys(top, spec, path)

    try:
        check_file_spec(top, spec, key_of=keys_of)
    except SpecError as refused:
        # a spec calls the largest budget max_epochs
        key = next((key for key in ("max_epochs", "steps", "max_steps") if top.contains(key)), "epochs")
        hints = tuple(hint.replace("max_epochs", key) for hint in refused.hints)
        if request.study.budget_unit is BudgetUnit.STEPS and key in ("epochs", "max_epochs"):
            steps = f"{request.study.max_epochs} steps, since `evaluate_every` is below an epoch"
            hints = (
                f"the budget is {steps}",
                "set more epochs, or more partitions: `partitions: {parts: N}`",
            )
        problem = refused.message.removeprefix(top.file).replace("max_epochs", key)
        raise SpecError(top.file + problem, hints=hints) from refused


def _study_keys(top: YamlSection, spec: Mapping[str, Any], path: list[str]) -> list[str]:
    match path:
        case ["study", "trial", "roles", index, *field] if index.isdecimal():
            keys = role_keys(spec["study"]["trial"]["roles"][int(index)], field)
            return ["roles", index, *keys] if top.contains("roles") else _command_key(top, keys)
        case ["study", "trial", *field]:
            return _study_keys(top, spec["study"]["trial"], field)
        case ["study", "space", index, *field] if index.isdecimal():
            return ["space", spec["study"]["space"][int(index)]["name"], *_range_keys(field)]
        case ["study", "mop", "partitions", *field]:
            return ["partitions", *field]
        case ["study", "mop", first, *field]:
            return [_MOP_KEYS.get(first, first), *field]
        case ["study", "searcher", "options", *field]:
            return ["searcher", *field]
        case ["study", *field]:
            return field
        case ["roles", "1", *field] if top.contains("workers") and field:
            keys = role_keys(spec["roles"][1], field)
            return ["workers"] if keys == ["replicas"] else keys
        case ["roles"] if not top.contains("roles"):
            return ["workers"] if top.contains("workers") else ["replicas"]
    return run_keys(spec, path)


def _command_key(top: YamlSection, keys: list[str]) -> list[str]:
    """Returns the key of a role in a file without roles. Its command may be a script."""
    return ["script"] if keys == ["command"] and top.contains("script") else keys


def _range_keys(field: list[str]) -> list[str]:
    """A list of values is written without a key."""
    return field[1:] if field[:1] == ["values"] else field
