"""Runs uv, which installs packages: its settings without passwords, its errors without secrets."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from hopyard.domain.urls import collect_credentials, insert_credentials, strip_credentials
from hopyard.replica.errors import NodeFault, PrepareFailed, UntrustedIndex

_ERROR_TAIL_LINES = 12
# Settings with URLs: the option of a requirements file for one of them, and the separator of several (None:
# white space).
_INDEX_SETTINGS: Mapping[str, tuple[str, str | None]] = {
    "UV_INDEX": ("--extra-index-url", None),
    "UV_EXTRA_INDEX_URL": ("--extra-index-url", None),
    "UV_DEFAULT_INDEX": ("--extra-index-url", None),
    "UV_INDEX_URL": ("--extra-index-url", None),
    "UV_FIND_LINKS": ("--find-links", ","),
}
_LABELLED = re.compile(r"^[\w.-]+=")  # an index with a name: `lab=https://…`
_HOST = re.compile(r"https?://[^/\s]+", re.IGNORECASE)
_ADDRESS_HOST = re.compile(r"https?://([^/\s`'\"]+)", re.IGNORECASE)
_PRIVATE = re.compile(r".*_(TOKEN|PASSWORD|USERNAME|SECRET|KEY)")
_UV_NAME_TO_PIP_NAME = {
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
}
# uv's messages about failed system calls and about an unreachable index.
_NODE_ERROR_PATTERN = re.compile(
    r"No space left on device|Too many open files|Cannot allocate memory|Resource temporarily "
    r"unavailable|Input/output error|Read-only file system"
    r"|Disk quota exceeded|Stale file handle|dns error|[Cc]onnection (refused|reset|timed out)|operation "
    r"timed out|error sending request|[Nn]etwork is unreachable"
)

_NETWORK_ERROR_PATTERN = re.compile(
    r"dns error|[Cc]onnection (refused|reset|timed out)|operation timed out|error sending request"
    r"|[Nn]etwork is unreachable"
)

# Messages of uv and its TLS library about a server without a certificate or protocol that this node accepts.
# uv reports these as a request that could not be sent, too.
_TLS_ERROR_PATTERN = re.compile(
    r"invalid peer certificate|received fatal alert|received corrupt message of type|peer is "
    r"incompatible|peer misbehaved"
)


def run_uv(
    run: Callable[..., subprocess.CompletedProcess[bytes]],
    argv: Sequence[str],
    *,
    activity: str,
    extra_env: bytes = b"",
    cache: Path | None = None,
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Runs uv and returns its output.

    run: starts a program with an environment that contains `secrets` and `settings`. cache: uv's cache
    folder. settings: None means all of this machine's settings. Raises PrepareFailed.
    """
    import uv  # late: only runs with requirements need it

    machine_settings = index_settings()
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("UV_", "PIP_")) and k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    }
    env |= dict(machine_settings if settings is None else settings) | dict(secrets)
    if cache is not None:
        env["UV_CACHE_DIR"] = str(cache)
    try:
        result = run([uv.find_uv_bin(), *argv], env=env)
    except (OSError, FileNotFoundError) as error:
        raise NodeFault(f"{activity}: uv could not be started: {error}") from error
    if result.returncode:
        error_lines = [
            line.rstrip() for line in result.stderr.decode(errors="replace").splitlines() if line.strip()
        ]
        message = _redact(
            "\n".join(error_lines[-_ERROR_TAIL_LINES:]),
            [*env.values(), *machine_settings.values(), extra_env.decode(errors="replace")],
            secrets.values(),
        ).removeprefix("error: ")
        reason = f"{activity}: " + (message.replace("in `-` at", "in the file at") if extra_env else message)
        own_hosts = _hosts(extra_env.decode(errors="replace")) - _hosts(" ".join(machine_settings.values()))
        raise uv_error(result.returncode, reason, own_hosts=own_hosts)
    return result.stdout


def uv_error(code: int, reason: str, *, own_hosts: Collection[str] = ()) -> PrepareFailed:
    """Classifies a failure of uv: caused by this node or its network, by a package index, or by the
    requirements. code: negative if uv was killed. own_hosts: those that only the requirements name; their
    names may be misspelt."""
    if code >= 0 and _TLS_ERROR_PATTERN.search(reason):
        return UntrustedIndex(reason)
    unreachable = sorted(host for host in own_hosts if host in _hosts(reason))
    if code >= 0 and unreachable and _NETWORK_ERROR_PATTERN.search(reason):
        named = ", ".join(unreachable)
        return UntrustedIndex(f"{reason}; the requirements name {named}, which this node cannot reach")
    return NodeFault(reason) if code < 0 or _NODE_ERROR_PATTERN.search(reason) else PrepareFailed(reason)


def _hosts(text: str) -> set[str]:
    """Returns the hosts of all addresses in a text, with their ports."""
    return {found.rpartition("@")[2].lower() for found in _ADDRESS_HOST.findall(text)}


def _redact(text: str, redacted_values: Iterable[str], secrets: Iterable[str]) -> str:
    """Removes the user names and passwords of package indexes from uv's output, since all users may read a
    run's exit reason."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    text = strip_credentials(text)
    for userinfo in collect_credentials(redacted_values).values():
        for part in (userinfo, userinfo.partition(":")[2]):
            text = text.replace(part, "***") if part else text
    return text


def index_settings() -> dict[str, str]:
    """Returns this machine's settings of uv, and those of pip under uv's names."""
    env = {
        name: value for name, value in os.environ.items() if name.startswith("UV_") and name != "UV_PYTHON"
    }
    for uv_name, pip_name in _UV_NAME_TO_PIP_NAME.items():
        pip_value = os.environ.get(pip_name)
        if uv_name not in env and pip_value:
            # pip separates by white space; uv separates find-links by commas and indexes by white space
            env[uv_name] = pip_value.replace(" ", ",") if uv_name == "UV_FIND_LINKS" else pip_value
    return env


def split_passwords(settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Splits uv's settings into those without passwords and lines of requirements.

    The first are for uv's environment, which code of packages inherits. The lines contain the URLs with a
    password. uv reads them from its input, which such code cannot read, and uses a password for all URLs of a
    host.
    """
    lines: list[str] = []
    for name, (option, separator) in _INDEX_SETTINGS.items():
        for setting in settings.get(name, "").split(separator):
            label, separator_found, address = (
                setting.partition("=") if _LABELLED.search(setting) else ("", "", setting)
            )
            if separator_found and strip_credentials(address) == address:
                of_index = "UV_INDEX_" + re.sub(r"\W", "_", label).upper()
                user, password = (
                    quote(settings.get(f"{of_index}_{suffix}", ""), safe="")
                    for suffix in ("USERNAME", "PASSWORD")
                )
                if user or password:
                    address = insert_credentials(
                        address, dict.fromkeys(_HOST.findall(address), f"{user}:{password}")
                    )
            if strip_credentials(address) != address:
                lines.append(f"{option} {address}")
    return {
        name: strip_credentials(value) for name, value in settings.items() if not _PRIVATE.fullmatch(name)
    }, lines
