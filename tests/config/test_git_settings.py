"""The section `git` of config.yaml."""

from __future__ import annotations

import pytest

from hopyard.config.git_settings import PUBLIC_HOSTS, GitSettings, read_git_settings
from hopyard.config.yaml_section import YamlSection
from hopyard.errors import SpecError


def test_hosts_without_a_scheme_use_https() -> None:
    section = YamlSection("config.yaml", "git", {"hosts": ["Git.Example.org:8443", "ssh://a"], "time": "10s"})
    assert read_git_settings(section) == GitSettings(("https://git.example.org:8443", "ssh://a"), 2**30, 10.0)
    assert read_git_settings(YamlSection("config.yaml", "git", {})).hosts == PUBLIC_HOSTS
    assert read_git_settings(YamlSection("config.yaml", "git", {"hosts": []})).hosts == ()


@pytest.mark.parametrize("host", ["http://a", "a/b", "-x", 3])
def test_other_hosts_are_refused(host: object) -> None:
    with pytest.raises(SpecError, match=r"git\.hosts\.0"):
        read_git_settings(YamlSection("config.yaml", "git", {"hosts": [host]}))
