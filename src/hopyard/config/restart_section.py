"""The restart policy in a file: `restart: on-failure`, or a mapping with its limits."""

from __future__ import annotations

from hopyard.config import units
from hopyard.config.schemas.runs import RestartIn
from hopyard.config.section_values import read_field
from hopyard.config.yaml_section import YamlSection, format_given
from hopyard.domain.restart_policy import MAX_BACKOFF_S, NO_RESTART, RestartMode, RestartPolicy

RESTART_KEYS = ("policy", "limit", "window", "backoff")
_MODES_HINT = "give " + ", ".join(RestartMode)


def read_restart(section: YamlSection, *, default: RestartPolicy = NO_RESTART) -> RestartPolicy:
    """Returns the policy under `restart`; `default` where the file has none. Raises SpecError."""
    value = section.values.get("restart")
    if value is None:
        return default
    if not isinstance(value, dict):
        return RestartPolicy(_read_mode(section, "restart"))
    mapping = section.section("restart").check_keys(*RESTART_KEYS)
    if not mapping.contains("policy"):
        raise section.error("restart", "`policy` is missing", _MODES_HINT)
    backoff_s = mapping.amount("backoff", units.parse_time)
    if backoff_s is not None and backoff_s > MAX_BACKOFF_S:
        raise mapping.error(
            "backoff", f"{mapping.given('backoff')} is too long", f"give at most {MAX_BACKOFF_S:g} seconds"
        )
    return RestartPolicy(
        _read_mode(mapping, "policy"),
        read_field(mapping, "limit", RestartIn),
        mapping.amount("window", units.parse_time),
        RestartPolicy().backoff_s if backoff_s is None else backoff_s,
    )


def _read_mode(section: YamlSection, key: str) -> RestartMode:
    value = section.source(key) or section.values.get(key)
    try:
        return RestartMode(str(value))
    except ValueError as error:
        raise section.error(key, f"{format_given(value)} is not a restart policy", _MODES_HINT) from error


def restart_values(policy: RestartPolicy) -> object:
    """Returns the value that `read_restart` reads as `policy`; None for the default."""
    if policy == RestartPolicy(policy.mode):
        return None if policy == NO_RESTART else policy.mode.value
    return {
        "policy": policy.mode.value,
        "limit": policy.limit,
        **({} if policy.window_s is None else {"window": units.format_time(policy.window_s)}),
        "backoff": units.format_time(policy.backoff_s),
    }
