"""References to images: names, registries, tags and digests; nothing that is a path, a link or an option."""

from __future__ import annotations

import pytest

from hopyard.domain.image_reference import MAX_IMAGE_REFERENCE, check_image
from hopyard.errors import SpecError

DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    "text",
    ["python", "python:3.12-slim", "registry.lab:5000/team/train:2", f"a/b{DIGEST}", f"a_b/c-d:1{DIGEST}"],
)
def test_reference_is_kept(text: str) -> None:
    assert check_image(text, what="--image") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Python",
        "../etc",
        "/etc",
        "a b",
        "a:",
        "a?all=1",
        "a\n",
        "-v",
        "http://a/b",
        "a" * (MAX_IMAGE_REFERENCE + 1),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not the name of an image"):
        check_image(text, what="--image")
