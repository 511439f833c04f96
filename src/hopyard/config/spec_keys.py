"""Maps fields of a RunSpec to keys of a file: an error about `roles.0.resources.cpu_milli` names `cpus`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hopyard.config.schemas.run_rules import check_new_run, check_spec, run_spec_from_json
from hopyard.config.yaml_section import YamlSection
from hopyard.errors import SpecError

_RUN_KEYS = {
    "label": "name",
    "time_limit_s": "time",
    "max_output_bytes": "max_output",
    "max_metrics_bytes": "max_metrics",
    "checkpoint_files": "checkpoints",
    "resume_arguments": "resume_args",
    "retention": "keep",
}
_ROLE_KEYS = {"min_replicas": "replicas"}
_RESOURCE_KEYS = {
    "cpu_milli": "cpus",
    "memory_bytes": "memory",
    "gpu_milli": "gpus",
    "gpu_models": "gpus",
    "gpu_memory_bytes": "gpu_memory",
}
_WRITTEN_AS_ONE = frozenset({"command", "topology", "cpus", "memory", "gpus", "gpu_memory", "replicas"})


def check_file_spec(
    top: YamlSection,
    spec: Mapping[str, Any],
    *,
    key_of: Callable[[Mapping[str, Any], list[str]], list[str]] | None = None,
) -> None:
    """Checks the spec that was read from `top` as the server does. `key_of` returns the keys of the file for
    the path of a field. Raises SpecError with the file and the path in it."""
    try:
        run_spec = run_spec_from_json(spec)
        check_spec(run_spec)
        check_new_run(run_spec)
    except SpecError as refused:
        path, _, problem = refused.message.partition(": ")
        keys = (key_of or run_keys)(spec, path.split("."))
        raise top.error(".".join(keys), problem, *refused.hints) from refused


def run_keys(spec: Mapping[str, Any], path: list[str]) -> list[str]:
    """Returns the keys of a file that describes a run, for the path of a field of its spec."""
    first, *rest = path
    match first, rest:
        case "roles", [index, *field] if index.isdecimal():
            return ["roles", index, *role_keys(spec["roles"][int(index)], field)]
        case "environment", [("python" | "container") as key, *_]:
            return [key]
        case (("datasets" | "secrets"), [index, *_]):
            return [first, index]
    return _joined([_RUN_KEYS.get(first, first), *rest])


def role_keys(role: Mapping[str, Any], path: list[str]) -> list[str]:
    """Returns the keys of a role in a file, for the path of a field of its spec."""
    match path:
        case ["resources", "extras", index, *_] if index.isdecimal():
            return ["resources", "extras", role["resources"]["extras"][int(index)][0]]
        case ["resources", first, *_]:
            return ["resources", _RESOURCE_KEYS.get(first, first)]
        case ["where", "labels", index, *_] if index.isdecimal():
            return ["labels", role["where"]["labels"][int(index)][0]]
        case ["where", "pools", *_]:
            return ["pool"]
        case ["where", *rest]:
            return rest
        case [first, *rest]:
            return _joined([_ROLE_KEYS.get(first, first), *rest])
    return path


def _joined(keys: list[str]) -> list[str]:
    """Drops the path below a key that a file writes as one value."""
    return keys[:1] if keys[0] in _WRITTEN_AS_ONE else keys
