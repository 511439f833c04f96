"""Addresses of git repositories that a server may fetch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.errors import Forbidden, SpecError

_URL = re.compile(
    r"(?P<scheme>[a-z+]+)://(?:(?P<user>[^@/]*)@)?(?P<host>[^/:]+)(?::(?P<port>\d{1,5}))?/(?P<path>.+)"
)
_SCP = re.compile(r"(?:(?P<user>[A-Za-z0-9_-]+)@)(?P<host>[^/:]+):(?P<path>[^/:].*)")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PATH = re.compile(r"[A-Za-z0-9._~][A-Za-z0-9._~/+@-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@-]{0,254}")
_EXAMPLE = "for example https://github.com/user/project"


@dataclass(frozen=True, slots=True)
class GitAddress:
    """A repository. origin: scheme, host and port, as the settings allow them: `https://github.com`. url: for
    git."""

    origin: str
    url: str

    @property
    def scheme(self) -> str:
        return self.origin.partition("://")[0]


def parse_git_address(text: str) -> GitAddress:
    """Parses `https://HOST/PATH`, `ssh://USER@HOST/PATH` or `USER@HOST:PATH`. Raises SpecError for any other
    address, also of a local folder, and for a password in it."""
    found = _URL.fullmatch(text) or _SCP.fullmatch(text)
    if found is None:
        raise SpecError(f"address: `{text[:200]}` is not the address of a git repository", hints=(_EXAMPLE,))
    parts = found.groupdict()
    scheme, user, port = parts.get("scheme") or "ssh", parts["user"] or "", parts.get("port")
    if scheme not in ("https", "ssh"):
        raise SpecError(
            f"address: `{scheme}` is not supported",
            hints=("give an address with https:// or ssh://", _EXAMPLE),
        )
    if scheme == "https" and user:
        raise SpecError(
            "address: it holds a user or password, and every user can read where the code of a run is from",
            hints=("give a public address, or upload the folder",),
        )
    path = parts["path"]
    is_plain = _PATH.fullmatch(path) and ".." not in path.split("/")
    if not _HOST.fullmatch(parts["host"]) or not is_plain or (user and not _USER.fullmatch(user)):
        raise SpecError("address: it has characters that no repository has", hints=(_EXAMPLE,))
    origin = f"{scheme}://{parts['host'].lower()}" + (f":{port}" if port else "")
    at = origin.replace("://", f"://{user}@") if user else origin
    return GitAddress(origin, f"{at}/{path}")


def check_git_host(address: GitAddress, allowed: Sequence[str]) -> None:
    """Raises Forbidden for a host that the settings of the server do not allow."""
    if address.origin not in allowed:
        raise Forbidden(
            f"address: this server fetches no code from {address.origin}",
            hints=(
                f"allowed: {', '.join(allowed) or 'none'}",
                "clone it on your machine, and upload the folder",
                f"or let the owner of the server add it: `git: {{hosts: [{address.origin}]}}` in config.yaml",
            ),
        )


def check_git_ref(ref: str) -> str:
    """Returns a branch, tag or full commit. Raises SpecError."""
    if not _REF.fullmatch(ref) or ".." in ref or "@{" in ref or ref.endswith((".lock", "/", ".")):
        raise SpecError(
            f"ref: `{ref[:100]}` is not a branch, a tag or a commit",
            hints=("for example main, v1.2 or all 40 digits of a commit",),
        )
    return ref
