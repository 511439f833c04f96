"""The links of the code that lead out of its folder: kept as links, without what they lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hopyard.client.feedback import Notify
from hopyard.config.home import Home
from hopyard.datasets.packed_tree import PackedTree
from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_LINKS = 1000
_MAX_NAMED = 3


def kept_links(tree: PackedTree, placed: Iterable[str], notify: Notify) -> dict[str, str]:
    """Returns the target of each link that the working folder of the run gets, and notifies of them.

    placed: the paths of datasets, which replace links. A link above such a path gives way to a folder. A
    link without a target, and one into the home of Hopyard, is left out. Raises SpecError for too many links:
    a part of them would be a part of the data.
    """
    kept: dict[str, str] = {}
    left_out: list[str] = []
    homes, places = os.path.realpath(Home.default().root), dict.fromkeys(map(os.path.normpath, placed))
    for path, target in tree.outside_links:
        if path in places:
            continue
        below = next((place for place in places if place.startswith(f"{path}/")), "")
        if below:
            notify(f"note: the run has a folder `{path}` in place of the link, for the dataset at `{below}`")
            continue
        real = os.path.realpath(target)
        is_usable = target.isprintable() and os.access(real, os.F_OK)
        if is_usable and os.path.commonpath((real, homes)) != homes:
            kept[path] = target
        else:
            left_out.append(f"{escape(path)} -> {escape(target)}")
    if len(kept) > MAX_LINKS:
        raise SpecError(
            f"{len(kept):,} links lead out of the folder, and a run has at most {MAX_LINKS:,}",
            hints=("link their folder as a whole, or add them to `.hopignore`", "or use `hop dataset push`"),
        )
    if kept:
        texts = [f"{path} -> {target}" for path, target in kept.items()]
        notify(f"note: links out of the folder stay links, and no data is packed: {_shorten(texts)}")
        code = [path for path, target in kept.items() if _leads_to_code(Path(target))]
        if code:
            notify(f"warning: {_shorten(code)} leads to code, which is not recorded: copy it into the folder")
        data = [path for path in kept if path not in code and Path(kept[path]).is_dir()]
        if data:
            path, target = data[0], kept[data[0]]
            notify(
                f"hint: for other machines, `hop dataset push NAME {target}` once, and `-d NAME={path}` in "
                "place of the link"
            )
    if left_out:
        notify(f"warning: links without a usable target are not packed: {_shorten(left_out)}")
    return kept


def _leads_to_code(target: Path) -> bool:
    try:
        return target.suffix == ".py" or any(entry.suffix == ".py" for entry in target.iterdir())
    except OSError:
        return False


def _shorten(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
    return ", ".join(texts[:_MAX_NAMED]) + more
