"""The paths of fetched media."""

from __future__ import annotations

from typing import Any

from hopyard.client.media import MEDIA_LIST, media_paths


def item(name: str, step: int = 1) -> Any:
    return {"name": name, "step": step, "type": "image/png"}


def test_no_name_of_media_is_the_path_of_another_file() -> None:
    names = ["x", "a/b", "..", ".", MEDIA_LIST, "media%2Ejson", "ü"]
    paths = list(media_paths([item(name) for name in names]))
    folders = [path.rpartition("/")[0] for path in paths]
    assert folders == ["x", "a%2Fb", "%2E.", "%2E", "media%2Ejson", "media%252Ejson", "%C3%BC"]
    assert MEDIA_LIST not in folders


def test_items_of_one_step_are_numbered() -> None:
    assert list(media_paths([item("x"), item("x"), item("x", 2)])) == ["x/1-0.png", "x/1-1.png", "x/2.png"]
