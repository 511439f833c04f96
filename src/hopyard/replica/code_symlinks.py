"""Makes the links of the code that lead out of its folder, where this node has their targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hopyard.domain.path_check import parent_paths
from hopyard.replica.uploads import open_folder_below


def place_links(
    work: Path, links: Mapping[str, str], datasets: Iterable[str], note: Callable[[str], None]
) -> None:
    """Makes each link in the working folder, unless something has its name there. datasets: their paths,
    which take the place of links. note: receives a text for each link that is missing."""
    places = set(datasets)
    folders = {parent for path in places for parent in parent_paths(path)}
    for path, target in links.items():
        if path in places:
            continue
        if path in folders:  # a dataset is never placed through a link
            note(f"the link `{path}` is missing in the working folder: a dataset is placed below it")
            continue
        if not os.path.exists(target):
            note(f"the link `{path}` is missing in the working folder: this node has no {target}")
            continue
        parent, _, name = path.rpartition("/")
        try:
            with open_folder_below(work, parent) as folder:
                os.symlink(target, name, dir_fd=folder)
        except FileExistsError:
            continue  # another replica of the gang was first, or a file of an earlier attempt
        except OSError as error:
            note(f"the link `{path}` is missing in the working folder: {error.strerror or error}")
