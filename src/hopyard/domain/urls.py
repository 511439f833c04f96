"""User names and passwords in the addresses that a text holds: found, taken out, and put in again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_HTTP = re.compile(r"(https?://)([^/\s]*)@([^/\s@\"',]+)")
_PLAIN = re.compile(r"(https?://)([^/\s@\"',]+)")
_PASSWORD = re.compile(r"(\w://[^/\s:@]*):[^/\s]*@")  # of other schemes: `ssh://git@host` needs its user, and a user alone is no secret


def without_credentials(text: str) -> str:
    """The text, with no user name or password in any address of a web server, and no password in any other address."""
    return _PASSWORD.sub(r"\1@", _HTTP.sub(r"\1\3", text))


def credentials(texts: Iterable[str]) -> dict[str, str]:
    """`user:password` by `scheme://host`, as addresses of web servers in the texts say; the first where several do."""
    found: dict[str, str] = {}
    for text in texts:
        for scheme, userinfo, host in _HTTP.findall(text):
            found.setdefault(scheme + host, userinfo)
    return found


def with_credentials(text: str, known: Mapping[str, str]) -> str:
    """The text, with `known` put into those of its addresses that have none."""

    def put(match: re.Match[str]) -> str:
        userinfo = known.get(match[0])
        return match[0] if userinfo is None else f"{match[1]}{userinfo}@{match[2]}"

    return _PLAIN.sub(put, text)
