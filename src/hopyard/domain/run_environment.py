"""Which variables of the machine a run's processes get: a short list, the same whichever shell started the
server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.errors import SpecError

# What programs need to work on this machine at all. No preferences of one person, and nothing that is usually
# secret.
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
# What building an environment needs beside these, such as the address of a package index with its password.
# No run gets it.
_BUILD_VARIABLES = (
    "UV_*", "PIP_*", "NETRC", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip
# What each process of a gang gets by its place: a user's value or secret of this name would not arrive.
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
        "CUDA_VISIBLE_DEVICES",
    }
)
_PLATFORM_VARIABLES = ("HOPYARD_HOME", "PYTHON*", "COVERAGE_*")  # of the replica program


def run_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str]:
    """What a run gets of these variables: those of `PASSED_VARIABLES`, and those that match the
    administrator's patterns `passed_patterns`. One of `PASSED_VARIABLES` that holds a password, as the
    address of a proxy may, is given only where `passed_patterns` names it."""
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


def check_settable(name: str, *, subject: str) -> str:
    """The name, where a user may give it a value. Raises SpecError for a variable that Hopyard sets itself,
    whose value would be lost."""
    if name.startswith("HOPYARD_"):
        raise SpecError(
            f"{subject}: `{name}` is set by Hopyard itself",
            hints=("choose a name that does not begin with HOPYARD_",),
        )
    if name in RANK_VARIABLES:
        raise SpecError(
            f"{subject}: `{name}` is set by Hopyard itself, for each process",
            hints=("choose another name: this variable gives a process its rank in the run",),
        )
    return name


def replica_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str]:
    """What the program beside a run gets: what the run gets, and what building environments needs."""
    own = {
        name: value
        for name, value in variables.items()
        if _matches_any(name, (*_BUILD_VARIABLES, *_PLATFORM_VARIABLES))
    }
    return {**run_variables(variables, passed_patterns), **own}


def visible_variables(variables: Mapping[str, str], passed_patterns: Iterable[str]) -> dict[str, str | None]:
    """What people are told of the variables that a run got: None in the place of the values that an
    administrator let in, which may be secret."""
    patterns = tuple(passed_patterns)
    return {
        name: None if _matches_any(name, patterns) else value for name, value in sorted(variables.items())
    }


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    """patterns: names, or the beginning of names and `*`.
    Compared as they are: to compile them takes 10 ms of each run's start."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns
    )


def _has_password(value: str) -> bool:
    """`http://user:password@host`, and the same without a scheme, as proxies are often written."""
    _, scheme, rest = value.partition("://")
    userinfo, at, _ = (rest if scheme else value).partition("/")[0].rpartition("@")
    return bool(at and (scheme or ":" in userinfo))
