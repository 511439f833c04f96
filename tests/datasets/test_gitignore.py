"""Ignore files exclude the same files as git does."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hopyard.client.git_state import GitProbe
from hopyard.datasets.folder_scan import scan_folder
from hopyard.datasets.gitignore import GitIgnore
from hopyard.datasets.ignore_rules import CODE_RULES, GITIGNORE, IgnoreRules

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

# As git does: no names are excluded by default.
GIT_RULES = IgnoreRules("git", (GITIGNORE,), only_files=True)
REPOSITORY_RULES = IgnoreRules("git", (GITIGNORE,), include_parents=True, only_files=True)
NAMES = ("a", "b", "ab", "a.py", "b.py", "b.bin", "é", "a b", "a ", "#a", "!a", "[a]", "-", "]", "^", "a-b")
TOKENS = (
    *("a", "b", "ab", ".py", "é", "/", "*", "**", "?", "[", "]", "!", "-", "\\", " ", "^", ":", "#", "\t"),
    *(
        "[a-b]",
        "[!a]",
        "[^b]",
        "[[:alpha:]]",
        "[[:punct:]]",
        "[:a]",
        "[]a]",
        "[a-]",
        "[a\\]",
        "/**/",
        "**/",
        "/**",
    ),
)
LINES = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6).map("".join)
TRACKED = st.sets(st.sampled_from(("a.py", "a/b/a.py", "ab/b.bin")))
FILES = st.lists(LINES, max_size=5).map("\n".join)


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        subprocess.run(["git", "init", "-q", root], check=True)
        parents = ("", "a/", "b/", "ab/", "a/a/", "a/b/", "b/a/", "a/b/a/", "é/")
        for parent in parents:
            (root / parent).mkdir(exist_ok=True)
        for parent in parents:
            for name in NAMES:
                if not (root / parent / name).is_dir():
                    (root / parent / name).touch()
        yield root


def files_of_git(root: Path) -> set[str]:
    """Returns the untracked files that git does not ignore."""
    command = ["git", "-C", root, "ls-files", "--others", "-z", "--exclude-per-directory=.gitignore"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    return {name.decode() for name in output.split(b"\0") if name}


def scanned_files(root: Path) -> set[str]:
    return {file[0] for file in scan_folder(root, GIT_RULES).files}


@settings(max_examples=250)
@given(top=FILES, nested=FILES)
@example(top="*\n!*/\n!*.py", nested="")
@example(top="**\n!**/\n!**/*.py", nested="")
@example(top="a/**\n!a/**/\n!a/**/*.py", nested="")
@example(top="a/**\n!a/b/\n!a/b/**", nested="")
@example(top="a**/b\na\\\n[z-a]\n[\n!a/", nested="!a")
@example(top="a \\ \na\\ \n \n\\#a\n\\!a", nested="# a\n/a/")
def test_same_files_as_git(repository: Path, top: str, nested: str) -> None:
    (repository / GITIGNORE).write_text(top)
    (repository / "a" / GITIGNORE).write_text(nested)
    assert scanned_files(repository) == files_of_git(repository)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xef\xbb\xbfa/\n", id="byte-order-mark"),
        pytest.param(b"# caf\xe9\nb.py\n", id="latin-1-comment"),
        pytest.param(b"*.py\r\nb\r\n", id="windows-line-ends"),
        pytest.param("?\n[é]\n".encode(), id="characters-of-two-bytes"),
        pytest.param(b"a\0b\nb\n", id="nul-byte"),
    ],
)
def test_same_files_as_git_for_any_encoding(repository: Path, content: bytes) -> None:
    (repository / GITIGNORE).write_bytes(content)
    (repository / "a" / GITIGNORE).write_bytes(b"")
    assert scanned_files(repository) == files_of_git(repository)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    top=FILES, exclude=FILES, user=FILES, tracked=st.sets(st.sampled_from(("a.py", "a/b/a.py", "ab/b.bin")))
)
@example(top="a/", exclude="", user="", tracked={"a/b/a.py"})
@example(top="!b.py", exclude="b.py", user="*.bin", tracked=set())
def test_private_files_and_tracked_files_as_git(
    repository: Path, monkeypatch: pytest.MonkeyPatch, top: str, exclude: str, user: str, tracked: set[str]
) -> None:
    (repository / "a" / GITIGNORE).unlink(missing_ok=True)
    (repository / GITIGNORE).write_text(top)
    (repository / ".git" / "info" / "exclude").write_text(exclude)
    (repository / ".git" / "user").mkdir(exist_ok=True)
    (repository / ".git" / "user" / "ignore").write_text(user)
    (repository / ".git" / "user" / "config").write_text(
        f"[core]\n\texcludesFile = {repository}/.git/user/ignore\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(repository / ".git" / "user" / "config"))
    git = ("git", "-C", str(repository))
    subprocess.run([*git, "rm", "-rq", "--cached", "--ignore-unmatch", "."], check=True)
    if tracked:
        subprocess.run([*git, "--literal-pathspecs", "add", "-f", *tracked], check=True)
    probe = GitProbe(repository)
    try:
        kept = probe.tracked_ignored_files()
        files = {file[0] for file in scan_folder(repository, REPOSITORY_RULES, tracked=kept).files}
    finally:
        probe.close()
    command = [*git, "ls-files", "--others", "--exclude-standard", "-z"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    (repository / ".git" / "info" / "exclude").write_text("")
    subprocess.run([*git, "rm", "-rq", "--cached", "--ignore-unmatch", "."], check=True)
    assert files == {name.decode() for name in output.split(b"\0") if name} | tracked


def test_linked_ignore_file_is_not_read(repository: Path) -> None:
    (repository / "a" / GITIGNORE).write_bytes(b"")
    (repository / GITIGNORE).unlink()
    (repository / "b.bin").write_text("a\n")
    (repository / GITIGNORE).symlink_to("b.bin")
    try:
        assert scanned_files(repository) == files_of_git(repository) - {GITIGNORE}
    finally:
        (repository / GITIGNORE).unlink()


@pytest.mark.parametrize("patterns", ["*\n!*/\n!*.py", "!.*", "!*", "!/*", "*.bin\n!**"])
def test_wildcards_do_not_include_caches_and_secrets(tmp_path: Path, patterns: str) -> None:
    (tmp_path / GITIGNORE).write_text(patterns)
    for name in ("main.py", ".venv/x.py", "node_modules/x.py", ".netrc", "src/__pycache__/x.py", ".git/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files = {file[0] for file in scan_folder(tmp_path, CODE_RULES).files}
    assert files - {GITIGNORE} == {"main.py"}


def test_match_names_the_last_pattern() -> None:
    patterns = GitIgnore(b"*.bin\n!keep.bin\n")
    assert patterns.last_match(b"a.bin", is_folder=False) == (True, False, 1)
    assert patterns.last_match(b"keep.bin", is_folder=False) == (False, True, 2)
    assert patterns.last_match(b"a.py", is_folder=False) is None


@pytest.mark.parametrize(
    ("pattern", "fits", "other"),
    [
        (b"*a" * 30 + b"*b", b"a" * 250 + b"b", b"a" * 250),
        (b"x/" + b"*a" * 30 + b"*b", b"x/" + b"a" * 250 + b"b", b"x/" + b"a" * 250),
        (b"**/" + b"?*" * 30 + b"b", b"a/" * 20 + b"a" * 200 + b"b", b"a/" * 20 + b"a" * 200),
        (b"**/a/" * 30 + b"b", b"a/" * 500 + b"b", b"a/" * 500 + b"c"),
        (b"**/*a*a*a/" * 20 + b"b", b"aaaa/" * 200 + b"b", b"aaaa/" * 200 + b"c"),
        (b"x*/" + b"**\\/a" * 30 + b"*b", b"x/" + b"/a" * 200 + b"b", b"x/" + b"/a" * 200),
    ],
)
def test_many_stars_take_polynomial_time(pattern: bytes, fits: bytes, other: bytes) -> None:
    patterns = GitIgnore(pattern)
    assert patterns.last_match(fits, is_folder=False) is not None
    assert patterns.last_match(other, is_folder=False) is None  # with a search for each place: years
