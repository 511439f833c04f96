"""User names and passwords in the addresses that a text holds: found, taken out, and put in again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_HTTP_CREDENTIALS = re.compile(r"(https?://)([^/\s?#\\]*)@([^/\s@\"',]+)", re.IGNORECASE)
_HTTP_HOST = re.compile(r"(https?://)([^/\s@\"',]+)", re.IGNORECASE)
# of other schemes: `ssh://git@host` needs its user, and a user alone is no secret
_URL_PASSWORD = re.compile(r"(\w://[^/\s:@]*):[^/\s]*@")
_URL_CREDENTIALS = re.compile(r"([a-z][a-z0-9+.-]*://)([^/\s\"<>`]*)@([^/\s@\"',<>`]+)", re.IGNORECASE)
_QUERY_SECRET = re.compile(
    r"([?&][a-z_-]*(?:token|password|passwd|secret|api_?key|signature)=)([^&\s\"'#$*<{]+)", re.IGNORECASE
)
# What stands for a value that is put in later: ${NAME}, $NAME, ***, <token>, {token}, %(token)s.
_PLACEHOLDER = re.compile(r"(?:\$\{\w+\}|\$\w+|\*+|<[^>]*>|\{[^}]*\}|%\(\w+\)s)+")
_MIN_TOKEN_LENGTH = 16  # a user name of so many, without a password, is a token


def strip_credentials(text: str) -> str:
    """The text, with no user name or password in any address of a web server, no password in any other
    address, and no token in a query."""
    return _QUERY_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1@", _HTTP_CREDENTIALS.sub(r"\1\3", text)))


def find_secrets(text: str) -> Iterator[tuple[int, str]]:
    """The lines (from 1) with an address that holds a password or token, and the beginning of that address
    without it. What stands for a value, as `${TOKEN}` does, is none."""
    for at, line in enumerate(text.split("\n"), 1):
        for scheme, userinfo, host in _URL_CREDENTIALS.findall(line):
            user, _, password = userinfo.partition(":")
            value = password or user  # `TOKEN:@host` is written, too
            if value and not _PLACEHOLDER.fullmatch(value) and (password or len(value) >= _MIN_TOKEN_LENGTH):
                yield at, scheme + host
        for found in _QUERY_SECRET.finditer(line):
            yield at, line[: found.start()].split()[-1].rpartition("@")[2].strip("\"'")


def collect_credentials(texts: Iterable[str]) -> dict[str, str]:
    """`user:password` by `scheme://host`, as addresses of web servers in the texts say; the first where
    several do."""
    found: dict[str, str] = {}
    for text in texts:
        for scheme, userinfo, host in _HTTP_CREDENTIALS.findall(text):
            found.setdefault(scheme + host, userinfo)
    return found


def insert_credentials(text: str, credentials_by_host: Mapping[str, str]) -> str:
    """The text, with `credentials_by_host` put into those of its addresses that have none."""

    def put(match: re.Match[str]) -> str:
        userinfo = credentials_by_host.get(match[0])
        return match[0] if userinfo is None else f"{match[1]}{userinfo}@{match[2]}"

    return _HTTP_HOST.sub(put, text)
