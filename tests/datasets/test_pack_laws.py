"""Properties of every tree."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.datasets.pack import ALL_FILES_RULES, pack_tree
from hopyard.datasets.transfer import pull_tree, push_tree
from hopyard.domain.manifest import Manifest
from hopyard.domain.path_check import check_path, link_stays_inside
from hopyard.errors import HopyardError, IntegrityError
from tests.datasets.folder_transport import list_tree, open_transport

Name = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..") and len(name.encode()) <= 255)
Content = st.one_of(
    st.binary(max_size=40), st.sampled_from([0, 4, 70_000, 1 << 20]).map(lambda size: b"z" * size)
)
Tree = st.recursive(
    st.dictionaries(Name, st.tuples(Content, st.booleans()), max_size=4),
    lambda inner: st.dictionaries(
        Name, st.one_of(st.tuples(Content, st.booleans()), inner, st.just("link")), max_size=4
    ),
    max_leaves=12,
)


def write(root: Path, tree: object, shuffled: random.Random | None = None) -> None:
    root.mkdir()
    assert isinstance(tree, dict)
    entries = list(tree.items())
    if shuffled:
        shuffled.shuffle(entries)
    for name, entry in entries:
        path = root / name
        if entry == "link":
            path.symlink_to(next(iter(sorted(tree))))
        elif isinstance(entry, dict):
            write(path, entry, shuffled)
        else:
            path.write_bytes(entry[0])
            path.chmod(0o755 if entry[1] else 0o644)


@given(Tree, st.integers())
@settings(max_examples=40)
def test_pack_push_and_pull_round_trip_tree(
    tmp_path_factory: pytest.TempPathFactory, tree: object, seed: int
) -> None:
    top = tmp_path_factory.mktemp("law")
    write(top / "one", tree)
    write(top / "two", tree, random.Random(seed))
    one = pack_tree(top / "one", rules=ALL_FILES_RULES, cache=top / "cache")
    assert one.digest == pack_tree(top / "two", rules=ALL_FILES_RULES).digest, (
        "equal trees have equal digests, in whatever order they were made"
    )
    assert Manifest.decode(one.encoded).encode() == one.encoded
    with open_transport(top / "blobs") as server:
        push_tree(one, server)
        pull_tree(one.digest, top / "back", server)
    assert list_tree(top / "back") == list_tree(top / "one")
    assert pack_tree(top / "back", rules=ALL_FILES_RULES).digest == one.digest


# -- manifests from strangers --------------------------------------------------------------------------------

Odd = st.sampled_from(
    [
        "a",
        "b",
        "..",
        ".",
        "",
        "/",
        "a/b",
        "../x",
        "a/../..",
        "/etc",
        "a\0b",
        "a\nb",
        "a\\b",
        "a//b",
        "é",
        "\ud800",
        "a/",
    ]
)
Digests = st.sampled_from(["0" * 64, "f" * 64, "F" * 64, "x", "", 5])
Body = st.fixed_dictionaries(
    {
        "v": st.sampled_from([1, 1, 1, 2, True, "1", None]),
        "files": st.lists(
            st.tuples(
                Odd,
                st.one_of(st.integers(-2, 9), st.just(2**40), st.booleans(), st.floats()),
                st.integers(0, 2),
                st.lists(Digests, max_size=2),
            )
        ),
        "links": st.lists(st.tuples(Odd, Odd), max_size=3),
        "folders": st.lists(Odd, max_size=3),
    }
)


@given(
    st.one_of(
        Body.map(
            lambda body: json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode(
                errors="surrogatepass"
            )
        ),
        st.binary(max_size=60),
    )
)
@settings(max_examples=300)
def test_decode_refuses_unsafe_manifests(data: bytes) -> None:
    try:
        result = Manifest.decode(data)
    except IntegrityError:
        return
    except HopyardError as wrong:  # pragma: no cover
        raise AssertionError(f"not an IntegrityError: {wrong!r}") from wrong
    assert result.encode() == data
    paths = [f.path for f in result.files] + [link.path for link in result.links] + list(result.folders)
    assert len(set(paths)) == len(paths)
    for path in paths:
        check_path(path)
        assert not path.startswith("/") and ".." not in path.split("/")
    taken = {f.path for f in result.files} | {link.path for link in result.links}
    assert not any(path.startswith(other + "/") for path in paths for other in taken)
    assert all(link_stays_inside(link.path, link.target) for link in result.links)
