"""Requirements files mean the same as to pip."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopyard.client.local_requirements import parse_local
from hopyard.client.requirements import CONSTRAINT_MARK, flatten_requirements, read_requirements
from hopyard.errors import SpecError

req_file = pytest.importorskip("pip._internal.req.req_file")

VARIABLES = {"INDEX": "index.example", "EMPTY": ""}
NAMES = ("main.txt", "sub/base.txt", "sub/deep/more.txt", "constraints.txt")
PIECES = (
    *("", "six", "six==1.16.0", "idna[extra]>=2 ; python_version > '3.0'"),
    *("pkg @ https://${INDEX}/p.whl", "./local", "# comment", " # comment", "six # comment"),
    *("six#no-comment", "\\", "six \\", "-e .", "-e ./sub", "-r sub/base.txt", "-rbase.txt"),
    *("--requirement=deep/more.txt", "-c constraints.txt", "-c ../constraints.txt"),
    *("--constraint deep/more.txt", "--req base.txt", "-r ../constraints.txt"),
    *("--index-url https://${INDEX}/simple", "--extra-index-url=https://${ABSENT}/${EMPTY}"),
    *("-i https://a/", "-f links", "--find-links ./sub", "--pre", "--no-index"),
    *("six==1 --hash=sha256:ab --hash=sha256:cd", "six \\\n    --hash=sha256:ab", "--unknown", "-r"),
    *("--no-binary :all:", "--trusted-host h", "six -r sub/base.txt", "é==1", "'six", ""),
)
LINES = st.lists(st.sampled_from(PIECES), max_size=5)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sub" / "deep").mkdir(parents=True)
        yield Path(name)


def lines_of_pip(file: Path) -> list[tuple[Any, ...]]:
    """Returns requirements with their hashes, and options, in pip's order."""
    parser = req_file.RequirementsFileParser(None, req_file.get_line_parser(None))
    found: list[tuple[Any, ...]] = []
    for line in parser.parse(str(file), constraint=False):
        requirement = getattr(line, "requirement", None)
        if requirement is not None:
            editable = bool(line.opts.editables)
            hashes = {} if editable else line.opts.hashes or {}
            digests = sorted(f"{name}:{digest}" for name, digests in hashes.items() for digest in digests)
            found.append((requirement, editable, line.constraint, digests))
        else:
            links = line.opts.find_links or [None]
            found.append(
                (line.opts.index_url, line.opts.extra_index_urls or [], links[0], line.opts.no_index)
            )
    return found


def own_lines(file: Path) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for line in read_requirements(file, VARIABLES):
        values = line.values
        if line.requirement or values.editable:
            editable = bool(values.editable)
            digests = [] if editable else sorted(set(values.hash or []))
            requirement = line.requirement or values.editable[0]
            found.append((requirement, editable, line.is_constraint, digests))
        else:
            index = values.index_url[-1] if values.index_url else None
            links = values.find_links or [None]
            found.append((index, values.extra_index_url or [], links[0], bool(values.no_index)))
    return found


@settings(max_examples=120, deadline=None)
@given(main=LINES, base=LINES, more=LINES, constraints=LINES)
@example(main=["-c constraints.txt", "six"], base=[], more=[], constraints=["-r sub/base.txt", "six==1"])
@example(main=["six \\", "# comment", "idna"], base=[], more=[], constraints=[])
def test_same_lines_as_pip(
    folder: Path, main: list[str], base: list[str], more: list[str], constraints: list[str]
) -> None:
    for name, lines in zip(NAMES, (main, base, more, constraints), strict=True):
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    own: object
    try:
        own = own_lines(folder / "main.txt")
    except SpecError:
        own = None
    with pytest.MonkeyPatch.context() as patch:
        for name in ("INDEX", "EMPTY", "ABSENT"):
            patch.delenv(name, raising=False)
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        try:
            expected = lines_of_pip(folder / "main.txt")
        except (RecursionError, req_file.InstallationError):
            expected = None
    assert own == expected


def test_one_text_holds_all_that_was_read(folder: Path) -> None:
    (folder / "main.txt").write_text("-r sub/base.txt\n-c constraints.txt\n-f sub/links\n")
    (folder / "sub" / "base.txt").write_text("-f links\n--index-url https://${INDEX}\nsix  # why\n")
    (folder / "sub" / "links").mkdir(exist_ok=True)
    (folder / "constraints.txt").write_text("six==1.16.0\n")
    text = flatten_requirements(read_requirements(folder / "main.txt", VARIABLES), folder)
    assert text.splitlines() == [
        "--find-links sub/links",
        "--index-url https://index.example",
        "six",
        f"{CONSTRAINT_MARK}six==1.16.0",
        "--find-links sub/links",
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_mark_names_the_encoding(folder: Path, encoding: str) -> None:
    (folder / "main.txt").write_bytes("# é\nsix\n".encode(encoding))
    assert [line.requirement for line in read_requirements(folder / "main.txt", {})] == ["six"]


def test_errors_name_file_and_line(folder: Path) -> None:
    main = folder / "main.txt"
    main.write_bytes("six\n# caf\xe9\n".encode("latin-1"))
    with pytest.raises(SpecError, match=f"{main}: line 2 is not utf-8"):
        read_requirements(main, {})
    main.write_text("# coding: latin-1\nsix\n")
    assert [line.number for line in read_requirements(main, {})] == [2]
    main.write_text("six\n-r sub/absent.txt\n")
    with pytest.raises(SpecError, match=r"absent.txt, which .*main.txt includes, cannot be read"):
        read_requirements(main, {})
    main.write_text("-r sub/base.txt\n")
    (folder / "sub" / "base.txt").write_text(f"-r ..{os.sep}main.txt\n")
    with pytest.raises(SpecError, match="includes it"):
        read_requirements(main, {})


LOCAL_PATHS = (
    *("dist/lib-1.0-py3-none-any.whl", "dist/lib-1.0.tar.gz", "lib-1.0.zip", "lib", "lib/", ".", "six"),
    *("dist/absent-1.0.zip", "lib-1.0.egg"),
)
LOCAL_STARTS = ("", "./", "{up}", "{here}", "file:", "file:./", "file://{here}", "FILE:", "https://h/")


def local_path_of_pip(line: Any, folder: Path) -> str | None:
    """Returns the path that pip installs; None for a requirement of an index or an address."""
    constructors = pytest.importorskip("pip._internal.req.constructors")
    if line.opts.editables:
        link = constructors.install_req_from_editable(line.requirement).link
    else:
        link = constructors.install_req_from_line(line.requirement).link
    if link is not None and not link.scheme:
        raise ValueError  # of newer versions, which refuse it when they install
    is_file = link is not None and link.scheme == "file"
    return os.path.normpath(folder / link.file_path) if is_file else None


@pytest.mark.parametrize("words", ["{}", "-e {}", "lib @ {}", "lib[a]@{}", "lib@{}"])
@pytest.mark.parametrize("tail", ["", "[a,b]", "#egg=lib", " ; python_version > '3'"])
def test_same_local_paths_as_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, tail: str
) -> None:
    """Lines that pip refuses are not compared. Neither are extras behind an address without a name, which
    versions of pip read in different ways."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "lib").mkdir()
    for name in ("lib/setup.py", "setup.py", *LOCAL_PATHS[:3]):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    parser = req_file.RequirementsFileParser(None, req_file.get_line_parser(None))
    compared = 0
    for start in LOCAL_STARTS:
        for path in LOCAL_PATHS:
            address = start.format(here=f"{tmp_path}/", up=f"../{tmp_path.name}/") + path + tail
            if ":" in start and "[" in tail:
                continue
            (tmp_path / "r.txt").write_text(words.format(address) + "\n")
            try:
                (line,) = parser.parse("r.txt", constraint=False)
                expected = local_path_of_pip(line, tmp_path)
            except Exception:  # pip raises many kinds
                continue
            (own,) = read_requirements(tmp_path / "r.txt", {})
            local = parse_local(own)
            found = None if local is None else os.path.normpath(tmp_path / local.path)
            assert found == expected, words.format(address)
            compared += 1
    assert compared > 5 or words != "{}"
