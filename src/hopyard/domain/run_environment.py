"""Which variables of the machine a run's processes get: a short list, the same whichever shell started the
server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hopyard.errors import SpecError

# What programs need to work on this machine at all. No preferences of one person, and nothing that is usually
# secret.
PASSED = (
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
_BUILDING = (
    "UV_*", "PIP_*", "NETRC", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip
# What each process of a gang gets by its place: a user's value or secret of this name would not arrive.
BY_PLACE = frozenset(
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
_ITSELF = ("HOPYARD_HOME", "PYTHON*", "COVERAGE_*")  # of the replica program


def for_runs(variables: Mapping[str, str], passed: Iterable[str]) -> dict[str, str]:
    """What a run gets of these variables: those of `PASSED`, and those that match the administrator's
    patterns `passed`. One of `PASSED` that holds a password, as the address of a proxy may, is given only
    where `passed` names it."""
    patterns = tuple(passed)
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith("HOPYARD_")
        and (_matches(name, patterns) or (_matches(name, PASSED) and not _has_password(value)))
    }


def check_settable(name: str, *, what: str) -> str:
    """The name, where a user may give it a value. Raises SpecError for a variable that Hopyard sets itself,
    whose value would be lost."""
    if name.startswith("HOPYARD_"):
        raise SpecError(
            f"{what}: `{name}` is set by Hopyard itself",
            hints=("choose a name that does not begin with HOPYARD_",),
        )
    if name in BY_PLACE:
        raise SpecError(
            f"{what}: `{name}` is set by Hopyard itself, for each process",
            hints=("choose another name: this one tells a process its place in the run",),
        )
    return name


def for_replicas(variables: Mapping[str, str], passed: Iterable[str]) -> dict[str, str]:
    """What the program beside a run gets: what the run gets, and what building environments needs."""
    own = {name: value for name, value in variables.items() if _matches(name, (*_BUILDING, *_ITSELF))}
    return {**for_runs(variables, passed), **own}


def as_told(variables: Mapping[str, str], passed: Iterable[str]) -> dict[str, str | None]:
    """What people are told of the variables that a run got: None in the place of the values that an
    administrator let in, which may be secret."""
    patterns = tuple(passed)
    return {name: None if _matches(name, patterns) else value for name, value in sorted(variables.items())}


def _matches(name: str, patterns: Iterable[str]) -> bool:
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
