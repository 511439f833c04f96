"""Everything below a home is created in one place, so that other users can read nothing in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .tree import modules

# Modules that create folders or files outside a home, or outside its rules, with their purpose.
ELSEWHERE = {
    "private_files.py": "the one place",
    "config/home.py": "folders above the root folder of a home",
    "client/pull.py": "the folder that a user pulls into",
    "client/run_files.py": "the folder that a user fetches into",
    "client/media.py": "the folder that a user fetches into",
    "sdk/media.py": "audio in memory",
    "cli/studies/run.py": "the journal of a study that runs below a temporary folder",
    "cli/examples.py": "the folder that a user copies into",
    "cli/completion.py": "files that the user's shell reads",
    "cli/service.py": "the unit of systemd, and the folder of logs for it",
    "datasets/open_folder.py": "folders and files of trees, where a user pulls or below 0700 in the cache",
    "datasets/transfer.py": "the folder that a user pulls into",
    "datasets/tree_cache.py": "copies of trees, in the 0700 folder of a replica",
    "engines/local/cgroups.py": "cgroups",
    "integrations/keras.py": "a checkpoint in the folder that the script chooses, as Keras writes it",
    "replica/resource_limits.py": "cgroups",
    "replica/container/replica_container.py": "an archive in memory",
    "replica/uploads.py": (
        "copies of files, by descriptors, in the 0700 folder of a replica that must not be made again"
    ),
    "replica/mount_namespace.py": "mount points, in the memory of a namespace",
    "replica/dataset_mounts.py": "empty mount points where a user names them, such as /data/mnist",
    "sdk/startup/exit_texts.py": "a file of mode 0600 in the 0700 folder of a replica",
    "sdk/startup/param_reads.py": "a file of mode 0600 in the 0700 folder of a replica",
    "sdk/startup/package_versions.py": "an empty file of mode 0600 in the 0700 folder of a replica",
    "spark/barrier.py": "folders of a Spark task",
    "spark/study.py": "folders of a Spark task",
    "spark/stores/hadoop.py": "settings of Hadoop in a temporary folder",
}
FOLDERS = {"mkdir", "makedirs"}
FILES = {"write_text", "write_bytes"}  # files of `tempfile` are private by default


def file_creating_calls(tree: ast.Module) -> Iterator[str]:
    """Calls that make a folder or a file without `private_files`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else node.func.id
            if isinstance(node.func, ast.Name)
            else ""
        )
        words = {
            part.id if isinstance(part, ast.Name) else part.attr
            for part in ast.walk(node)
            if isinstance(part, ast.Name | ast.Attribute)
        }
        if name in FOLDERS or name in FILES or (name == "touch" and not node.args):
            yield f"{node.lineno}: {name}"
        elif name != "open" or "open_file" in words:
            continue
        elif "O_CREAT" in words:
            yield f"{node.lineno}: open(…, O_CREAT)"
        elif any(_writes(arg) for arg in [*node.args, *(k.value for k in node.keywords)]):
            yield f"{node.lineno}: open for writing"


def _writes(argument: ast.expr) -> bool:
    return (
        isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and argument.value.strip("bt+") in ("w", "a", "x")
    )


def test_home_files_are_created_only_by_private_files() -> None:
    result = {
        str(path): list(file_creating_calls(tree))
        for path, tree in modules().items()
        if path.parts[0] != "testing"
    }
    by_itself = {path: calls for path, calls in result.items() if calls and path not in ELSEWHERE}
    assert not by_itself, "use make_folder, open_file and write_atomically of hopyard.private_files"
    assert not [path for path in ELSEWHERE if not result[path]], "these make nothing any more"


def test_search_finds_each_way_of_creating_a_file(tmp_path: Path) -> None:
    ways = [
        "p.mkdir()",
        "os.makedirs(p)",
        "p.write_bytes(b'')",
        "open(p, 'wb')",
        "p.open('a')",
        "os.open(p, os.O_RDWR | os.O_CREAT, 0o644)",
        "p.touch()",
    ]
    assert all(list(file_creating_calls(ast.parse(way))) for way in ways)
    assert not [
        way
        for way in (
            "open(p, 'wb', opener=open_file)",
            "open(open_file(p, os.O_WRONLY | os.O_CREAT), 'wb')",
            "open(p)",
            "os.open(p, os.O_RDONLY)",
            "stamp.touch('runs')",
        )
        if list(file_creating_calls(ast.parse(way)))
    ]
