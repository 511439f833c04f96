"""Settings of the code that the server fetches from git repositories."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hopyard.config import units
from hopyard.config.yaml_section import YamlSection, format_given

GIT_KEYS = ("hosts", "max_size", "time")
PUBLIC_HOSTS = (
    "https://github.com",
    "https://gitlab.com",
    "https://codeberg.org",
    "https://bitbucket.org",
    "https://huggingface.co",
)
_ORIGIN = re.compile(r"(https|ssh)://[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?(:\d{1,5})?")


@dataclass(frozen=True, slots=True)
class GitSettings:
    """hosts: scheme, host and port of the repositories that users may name. max_bytes: of the files of a
    repository, and of what git downloads. timeout_s: of a fetch."""

    hosts: tuple[str, ...] = PUBLIC_HOSTS
    max_bytes: int = 2**30
    timeout_s: float = 300.0


def read_git_settings(section: YamlSection) -> GitSettings:
    """Returns the settings of the section `git`. A host without a scheme is one of https. Raises
    SpecError."""
    section.check_keys(*GIT_KEYS)
    default = GitSettings()
    hosts: list[str] = []
    for index, host in section.items("hosts"):
        origin = host.lower() if isinstance(host, str) else ""
        origin = origin if "://" in origin else f"https://{origin}"
        if not _ORIGIN.fullmatch(origin):
            raise section.error(
                f"hosts.{index}",
                f"{format_given(host)} is not the host of repositories",
                "for example git.example.org, or ssh://git.example.org",
            )
        hosts.append(origin)
    return GitSettings(
        tuple(hosts) if section.contains("hosts") else default.hosts,
        section.amount("max_size", units.parse_positive_memory) or default.max_bytes,
        section.amount("time", units.parse_time) or default.timeout_s,
    )
