"""The documents match the program: every shown command exists, and the references equal the generated
ones."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hopyard.cli.main import hop

from .pages import code_blocks
from .tree import ROOT, tracked

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "contributing").glob("*.md")),
]
MAX_LINE = 100
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)")


def shell_lines(page: Path) -> Iterator[str]:
    """Returns the commands that a page shows."""
    return (line for block in code_blocks(page) if block.language == "sh" for line in block.lines())


def hop_calls(line: str) -> Iterator[list[str]]:
    """The arguments of every `hop` in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    call: list[str] | None = None
    for word in [*lexer, ";"]:
        if word[0] in "|&;<>()":
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(word)
        elif word == "hop" or word.endswith("/hop"):
            call = []


def documented_calls() -> list[tuple[str, list[str]]]:
    return [(page.name, call) for page in PAGES for line in shell_lines(page) for call in hop_calls(line)]


@pytest.mark.parametrize(
    ("page", "call"), documented_calls(), ids=lambda v: " ".join(v) if isinstance(v, list) else v
)
def test_every_command_that_a_page_shows_exists(page: str, call: list[str]) -> None:
    command: click.Command = hop
    context = click.Context(hop)
    while isinstance(command, click.Group) and call and not call[0].startswith("-"):
        result = command.get_command(context, call[0])
        assert result is not None, f"{page}: no command `{call[0]}`"
        command, call = result, call[1:]
    default = command.get_command(context, "run") if isinstance(command, click.Group) else None
    if default is not None and call and call[0] not in ("--help", "-h"):
        command = default  # `hop search -p …` is `hop search run -p …`
    known_options = {
        word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "-h"}
    for word in call[: call.index("--")] if "--" in call else call:
        if command.name == "run" and not word.startswith("-") and word.endswith((".py", ".yaml")):
            break  # arguments after a script may be its own
        if word.startswith("-") and word != "-":
            assert word.partition("=")[0] in known_options, (
                f"{page}: `hop {command.name}` has no option `{word}`"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_target(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_pictures_of_web_ui_are_small() -> None:
    """`python scripts/screenshots.py --docs` writes them."""
    pictures = sorted((ROOT / "docs" / "images").glob("web-*.png"))
    assert len(pictures) == 3
    assert [picture.name for picture in pictures if picture.stat().st_size >= 200_000] == []


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in tracked()
        if path.suffix in (".py", ".sh", ".toml", ".yml") and path.exists()
        for page in re.findall(r"\bdocs/[a-z0-9/-]+\.(?:md|svg)\b", path.read_text())
    }
    assert not [(file, page) for file, page in named if not (ROOT / page).exists()]


MODULE_PATH = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")
ROOMS = (ROOT, ROOT / "src" / "hopyard", ROOT / "src" / "hopyard" / "scheduler")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name in ("contributing", "designs", "internals")],
    ids=lambda page: page.name,
)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = MODULE_PATH.findall(page.read_text())
    assert not [path for path in named if not any((room / path).exists() for room in ROOMS)]


def test_lines_of_the_docs_are_short() -> None:
    """Tables, code and the generated and measured pages may be wider."""
    wide = []
    for page in PAGES:
        if page.name in ("cli.md", "benchmarks.md"):
            continue
        code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            if len(line) > MAX_LINE and not code and not line.lstrip().startswith(("|", "<")):
                wide.append(f"{page.relative_to(ROOT)}:{number}")
    assert not wide


def test_diagrams_match_their_sources() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/diagrams.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_reference_pages_match_program() -> None:
    result = subprocess.run(
        [sys.executable, "scripts/reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_readme_begins_with_demo_and_names_test_command() -> None:
    first = next(shell_lines(ROOT / "README.md"))
    assert first.startswith("make demo")
    assert any(line.startswith("make test") for line in shell_lines(ROOT / "README.md"))
