"""Manifests: canonical, and refusing everything that could lead out of the tree."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, LinkEntry, Manifest, referenced_blobs
from hopyard.domain.path_check import check_path, is_repository_name, link_stays_inside
from hopyard.errors import IntegrityError, SpecError

parts = st.text(
    st.characters(exclude_characters="/\\", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
).filter(lambda p: p not in (".", "..") and not is_repository_name(p))
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
digests = st.binary(min_size=32, max_size=32).map(lambda raw: Digest(raw.hex()))
words = st.sampled_from(["a", "b", "c", ".", "..", ""])


@st.composite
def trees(draw: st.DrawFn) -> Manifest:
    """Trees as a packer creates them: no path below a file or link, and no link that leaves the tree."""
    files: list[FileEntry] = []
    links: list[LinkEntry] = []
    folders: list[str] = []
    taken: set[str] = set()
    above: set[str] = set()
    for path in draw(st.lists(paths, max_size=8, unique=True)):
        parents = {path[:i] for i, c in enumerate(path) if c == "/"}
        if path in above or parents & taken:
            continue
        above |= parents
        kind = draw(st.sampled_from(["file", "file", "link", "folder"]))
        if kind == "folder":
            folders.append(path)
            above.add(path)
            continue
        taken.add(path)
        if kind == "link":
            links.append(LinkEntry(path, draw(paths)))
        else:
            size = draw(st.sampled_from([0, 1, CHUNK_BYTES, CHUNK_BYTES + 1]))
            sizes = [CHUNK_BYTES] * (size // CHUNK_BYTES) + [size % CHUNK_BYTES] * bool(size % CHUNK_BYTES)
            # a blob has one size
            chunks = tuple(Digest(draw(digests)[:-1] + str(int(size < CHUNK_BYTES))) for size in sizes)
            files.append(FileEntry(path, size, chunks, draw(st.booleans())))
    return Manifest.build(files, links, folders)


@given(trees())
def test_encoding_round_trips(tree: Manifest) -> None:
    assert Manifest.decode(tree.encode()) == tree


@given(trees(), st.randoms(use_true_random=False))
def test_equal_trees_have_equal_bytes_for_any_entry_order(tree: Manifest, random) -> None:
    files, links, folders = list(tree.files), list(tree.links), list(tree.folders)
    for entries in (files, links, folders):
        random.shuffle(entries)
    implied = [path.rpartition("/")[0] for path in (f.path for f in files) if "/" in path]
    assert Manifest.build(files, links, [*folders, *implied]).encode() == tree.encode()


@given(trees())
def test_other_encodings_of_a_tree_are_refused(tree: Manifest) -> None:
    body = json.loads(tree.encode())
    for other in (
        json.dumps(body),
        json.dumps(body, indent=1),
        json.dumps({**body, "x": 1}, separators=(",", ":"), sort_keys=True),
    ):
        with pytest.raises(IntegrityError):
            Manifest.decode(other.encode())


@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    ).map(lambda v: json.dumps(v).encode())
)
def test_any_other_bytes_raise_integrity_error(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        Manifest.decode(data)


D = "0" * 64


def body(**changes: object) -> bytes:
    return json.dumps(
        {"files": [], "folders": [], "links": [], "v": 1, **changes},
        separators=(",", ":"),
        sort_keys=True,
        ensure_ascii=False,
    ).encode()


# As git itself refuses them, for the sake of NTFS and HFS as well, and the same of Mercurial and Jujutsu.
REPOSITORIES = [
    *(
        ".git/config",
        ".GIT/config",
        "sub/.gIt/hooks/x",
        ".git",
        "git~1/config",
        "GIT~1",
        ".git./config",
        ".git /config",
        ".git . .",
        ".git::$INDEX_ALLOCATION/config",
    ),
    *(
        ".g\u200cit/config",
        ".git\u200d/config",
        "\ufeff.git/x",
        ".hg/hgrc",
        ".Hg /hgrc",
        ".jj/repo/config.toml",
    ),
]


@pytest.mark.parametrize(
    "path",
    [
        ".gitignore",
        ".gitattributes",
        ".github/x",
        "git/config",
        "a.git/HEAD",
        "x.git",
        "digit~1",
        ".git-blame",
        "HEAD",
        "objects/HEAD",
    ],
)
def test_repository_like_names_are_allowed(path: str) -> None:
    assert check_path(path) == path
    assert Manifest.decode(body(files=[[path, 0, 0, []]])).files[0].path == path


def test_bare_repository_is_refused_with_hfs_ignorable_characters() -> None:
    with pytest.raises(IntegrityError, match="repository"):
        Manifest.decode(
            body(files=[["d/HEA\u200cD", 0, 0, []], ["d/objects/x", 0, 0, []], ["d/refs/x", 0, 0, []]])
        )


def test_referenced_blobs_are_read_from_trees_with_forbidden_paths() -> None:
    assert referenced_blobs(body(files=[[".git/config", 1, 0, [D]]])) == {D}
    for invalid in (b"[]", b'{"files":[[1]]}', body(files=[["a", 1, 0, ["x"]]]), b"\xff"):
        with pytest.raises(IntegrityError):
            referenced_blobs(invalid)


def test_empty_tree_is_valid() -> None:
    assert Manifest.decode(body()) == Manifest()


@pytest.mark.parametrize(
    "encoded",
    [
        body(v=2),
        body(v=True),
        body(files=[["/etc/passwd", 1, 0, [D]]]),
        body(files=[["../x", 1, 0, [D]]]),
        body(files=[["a/../../x", 1, 0, [D]]]),
        body(files=[["a//b", 1, 0, [D]]]),
        body(files=[["a\u0000b", 1, 0, [D]]]),
        body(files=[["a", 1, 0, []]]),
        body(files=[["a", 0, 0, [D]]]),
        body(files=[["a", -1, 0, []]]),
        body(files=[["a", True, 0, [D]]]),
        body(files=[["a", 1.0, 0, [D]]]),
        body(files=[["a", 1, True, [D]]]),
        body(files=[["a", 1, 0, ["../../token"]]]),
        body(files=[["a", 1, 0, [None]]]),
        body(files=[["b", 0, 0, []], ["a", 0, 0, []]]),
        body(files=[["a", 0, 0, []], ["a", 0, 0, []]]),
        body(files=[["a", 0, 0, []], ["a/b", 0, 0, []]]),
        body(files=[["x" * 256, 0, 0, []]]),
        body(files=[["a", 0, 0, []]], folders=["a"]),
        body(files=[["a/b", 0, 0, []]], folders=["a"]),
        body(files=[["a/b", 0, 0, []]], links=[["a", "c"]]),
        body(links=[["a", "/etc"]]),
        body(links=[["a", ".."]]),
        body(links=[["a", ""]]),
        body(links=[["d/up", ".."], ["x", "d/up/.."]]),
        body(folders=[3]),
        *(body(files=[[path, 0, 0, []]]) for path in REPOSITORIES),
        body(links=[[".git", "a"]]),
        body(folders=["sub/.GIT"]),
        body(files=[[f"x/{name}", 0, 0, []] for name in ("HEAD", "config", "objects/a", "refs/b")]),
        body(files=[["HEAD", 0, 0, []]], folders=["objects", "refs"]),
        body(files=[["HEAD", 0, 0, []], ["commondir", 0, 0, []]]),
        body(files=[["a", CHUNK_BYTES, 0, [D]], ["b", 5, 0, [D]]]),
        b'{"files":[],"folders":["\\ud800"],"links":[],"v":1}',
        b"[" * 100_000,
    ],
)
def test_hostile_manifests_are_refused(encoded: bytes) -> None:
    with pytest.raises(IntegrityError):
        Manifest.decode(encoded)


@given(st.text())
@example("a/..")
@example("a\\..\\b")
def test_checked_path_stays_below_its_root(text: str) -> None:
    try:
        check_path(text)
    except SpecError:
        return
    root = Path("/root-of-tree")
    assert Path(os.path.normpath(root / text)).is_relative_to(root)
    assert os.path.normpath(text) == text


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join),
        st.lists(words, min_size=1, max_size=4).map("/".join),
        max_size=5,
    )
)
def test_accepted_links_never_leave_a_real_tree(
    tmp_path_factory: pytest.TempPathFactory, targets: dict[str, str]
) -> None:
    """Also through chains of links: made in a real folder and followed by the kernel."""
    links = [
        LinkEntry(path, target) for path, target in sorted(targets.items()) if link_stays_inside(path, target)
    ]
    tree = Manifest.build([], links)
    try:
        Manifest.decode(tree.encode())
    except IntegrityError:
        return  # a link below a link
    root = tmp_path_factory.mktemp("tree").resolve()
    for link in tree.links:
        place = root / link.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(link.target)
    for link in tree.links:
        try:
            result = (root / link.path).resolve(strict=True)
        except (OSError, RuntimeError):
            continue  # leads nowhere, or in a circle
        assert result.is_relative_to(root)
