"""References to container images: `python:3.12`, `registry.lab:5000/team/train@sha256:…`."""

from __future__ import annotations

import re

from hopyard.errors import SpecError

MAX_IMAGE_REFERENCE = 512
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REGISTRY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)"
IMAGE_PATTERN = (
    rf"{_REGISTRY}?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def check_image(text: str, *, what: str) -> str:
    """Returns the reference. Raises SpecError for a text that is no reference, such as a path or a URL."""
    if len(text) > MAX_IMAGE_REFERENCE or not re.fullmatch(IMAGE_PATTERN, text):
        raise SpecError(
            f"{what}: `{text[:MAX_IMAGE_REFERENCE]}` is not the name of an image",
            hints=("for example python:3.12-slim, or registry.lab:5000/team/train:2",),
        )
    return text
