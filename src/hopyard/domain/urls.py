"""User names and passwords in the URLs of a text, and URLs of this machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

_HTTP_CREDENTIALS = re.compile(r"(https?://)([^/\s?#\\]*)@([^/\s@\"',]+)", re.IGNORECASE)
_HTTP_HOST = re.compile(r"(https?://)([^/\s@\"',]+)", re.IGNORECASE)
# Of other schemes: `ssh://git@host` needs its user, and a user alone is no secret.
_URL_PASSWORD = re.compile(r"(\w://[^/\s:@]*):[^/\s]*@")
_URL_CREDENTIALS = re.compile(r"([a-z][a-z0-9+.-]*://)([^/\s\"<>`]*)@([^/\s@\"',<>`]+)", re.IGNORECASE)
_QUERY_SECRET = re.compile(
    r"([?&][a-z_-]*(?:token|password|passwd|secret|api_?key|signature)=)([^&\s\"'#$*<{]+)", re.IGNORECASE
)
# Placeholders for a value that is inserted later: ${NAME}, $NAME, ***, <token>, {token}, %(token)s.
_PLACEHOLDER = re.compile(r"(?:\$\{\w+\}|\$\w+|\*+|<[^>]*>|\{[^}]*\}|%\(\w+\)s)+")
_MIN_TOKEN_LENGTH = 16  # a user name of this length, without a password, is a token


def strip_credentials(text: str) -> str:
    """Returns the text without user names and passwords in URLs of web servers, without passwords in other
    URLs, and without tokens in queries."""
    return _QUERY_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1@", _HTTP_CREDENTIALS.sub(r"\1\3", text)))


def find_secrets(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines (from 1) that have a URL with a password or token, with the start of that URL without
    it. Ignores placeholders such as `${TOKEN}`."""
    for number, line in enumerate(text.split("\n"), 1):
        for scheme, userinfo, host in _URL_CREDENTIALS.findall(line):
            user, _, password = userinfo.partition(":")
            value = password or user  # `TOKEN:@host` is used, too
            if value and not _PLACEHOLDER.fullmatch(value) and (password or len(value) >= _MIN_TOKEN_LENGTH):
                yield number, scheme + host
        for match in _QUERY_SECRET.finditer(line):
            yield number, line[: match.start()].split()[-1].rpartition("@")[2].strip("\"'")


def collect_credentials(texts: Iterable[str]) -> dict[str, str]:
    """Returns `user:password` by `scheme://host`, from the URLs of web servers in the texts; the first one
    counts."""
    credentials: dict[str, str] = {}
    for text in texts:
        for scheme, userinfo, host in _HTTP_CREDENTIALS.findall(text):
            credentials.setdefault(scheme + host, userinfo)
    return credentials


def insert_credentials(text: str, credentials_by_host: Mapping[str, str]) -> str:
    """Returns the text with `credentials_by_host` inserted into URLs without credentials."""

    def insert(match: re.Match[str]) -> str:
        userinfo = credentials_by_host.get(match[0])
        return match[0] if userinfo is None else f"{match[1]}{userinfo}@{match[2]}"

    return _HTTP_HOST.sub(insert, text)


def is_loopback_url(url: str) -> bool:
    """Returns whether the URL leads to the machine that uses it."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
