"""Selects the variables of the machine that a run's processes get: a short list, independent of the shell
that started the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.errors import SpecError

MASKED_VALUE = "***"  # instead of a value that only the user of a run may read

# Variables that programs need to work on this machine. No preferences of a person, and no usual secrets.
PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
)
# Variables that also are needed to build an environment or to start a container, such as a package index
# with its password. No run gets them.
_BUILD_VARIABLES = (
    "UV_*", "PIP_*", "NETRC", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
    "DOCKER_HOST", "DOCKER_CONFIG", "CONTAINERS_CONF", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR",
)  # fmt: skip
# Variables that each process of a gang gets for its rank: they would override a user's value or secret. A
# run of one process does not get them: a script that finds `RANK` takes itself for a part of a gang.
RANK_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "ROLE_NAME",
        "ROLE_RANK",
    }
)
# The one variable of Hopyard that users set: `0` turns the import hooks off.
HOOKS_VARIABLE = "HOPYARD_STARTUP_HOOKS"
# Variables of every process that a user cannot set.
_DEVICE_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES"})
_PLATFORM_VARIABLES = ("HOPYARD_HOME", "PYTHON*", "COVERAGE_*")  # of the replica program


def run_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str]:
    """Returns the variables that a run gets: those in `PASSED_VARIABLES`, and those that match the
    administrator's patterns.

    A variable in `PASSED_VARIABLES` that holds a password, such as the address of a proxy, is passed only if
    `passed_patterns` matches it.
    """
    patterns = tuple(passed_patterns)
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("HOPYARD_")
        and (
            _matches_any(name, patterns)
            or (_matches_any(name, PASSED_VARIABLES) and not _has_password(value))
        )
    }


def container_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str]:
    """Returns the variables of the machine that a run in a container gets: proxies, the time zone, and those
    that match the administrator's patterns. Paths of the machine mean nothing in an image."""
    patterns = (
        *passed_patterns,
        "TZ",
        *(name for name in PASSED_VARIABLES if name.lower().endswith("_proxy")),
    )
    passed = run_variables(variables, passed_patterns)
    return {name: value for name, value in passed.items() if _matches_any(name, patterns)}


def check_settable(name: str, *, subject: str, in_gang: bool = False) -> str:
    """Returns the name if users may set it. Raises SpecError for variables that Hopyard sets, because the
    value would be lost."""
    if name == HOOKS_VARIABLE:
        return name
    if name.startswith("HOPYARD_"):
        raise SpecError(
            f"{subject}: `{name}` is set by Hopyard itself",
            hints=("choose a name that does not begin with HOPYARD_",),
        )
    if name in _DEVICE_VARIABLES or (in_gang and name in RANK_VARIABLES):
        raise SpecError(
            f"{subject}: `{name}` is set by Hopyard itself, for each process",
            hints=("choose another name: this variable gives a process its place in the run",),
        )
    return name


def replica_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str]:
    """Returns the variables of the replica program: those of the run, and those needed to build
    environments."""
    program_variables = {
        name: value
        for name, value in variables.items()
        if _matches_any(name, (*_BUILD_VARIABLES, *_PLATFORM_VARIABLES))
    }
    return {**run_variables(variables, passed_patterns), **program_variables}


def visible_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str | None]:
    """Returns the variables of a run for display: None replaces values that match an administrator's pattern,
    which may be secret."""
    patterns = tuple(passed_patterns)
    return {
        name: None if _matches_any(name, patterns) else value for name, value in sorted(variables.items())
    }


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether the name matches a pattern: a name, or a prefix and `*`.

    Patterns are compared directly: compiling them would add 10 ms to each run's start.
    """
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns
    )


def _has_password(value: str) -> bool:
    """Returns whether the value is `http://user:password@host`, with or without a scheme, as in proxy
    settings."""
    _, scheme, rest = value.partition("://")
    userinfo, separator, _ = (rest if scheme else value).partition("/")[0].rpartition("@")
    return bool(separator and (scheme or ":" in userinfo))
