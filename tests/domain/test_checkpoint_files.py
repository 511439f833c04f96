from __future__ import annotations

import pytest

from hopyard.domain.checkpoint_files import check_patterns, is_checkpoint, is_kept
from hopyard.errors import SpecError


@pytest.mark.parametrize(
    "path",
    ["last.ckpt", "ckpt.pt", "out/ckpt/state.json", "checkpoints/a/b.bin", "results/checkpoint-500/model.bin",
     "snapshot.pt", "Checkpoint.pth", "lightning_logs/version_0/checkpoints/epoch=1.ckpt"],
)  # fmt: skip
def test_checkpoints_of_frameworks_are_kept(path: str) -> None:
    assert is_kept(path)


@pytest.mark.parametrize(
    "path",
    ["model.pt", "data/x.bin", "checkpoint.py", "checkpoints/events.out.tfevents.1.a", "ckpt/model.tmp",
     ".ipynb_checkpoints/a.ipynb", "wandb/run/checkpoint.bin"],
)  # fmt: skip
def test_other_files_are_not(path: str) -> None:
    assert not is_kept(path)


@pytest.mark.parametrize(
    ("pattern", "path", "kept"),
    [
        ("model-*.pt", "deep/model-3.pt", True),
        ("out", "out/a/b.bin", True),
        ("out/*.bin", "out/a.bin", True),
        ("out/*.bin", "a/out/a.bin", False),
        ("out/*", "out/sub/a.bin", True),
        ("**/best/*.bin", "best/a.bin", True),
        ("**/best/*.bin", "a/b/best/a.bin", True),
        ("./out/a.py", "out/a.py", True),
        ("**", "out/a.py", True),
        ("out/**", "out/a.py", True),
        ("out/**/a.py", "out/a.py", True),
        ("**/a" * 30 + "/b", "a/" * 1000 + "c", False),  # with a search for each place it would take years
    ],
)
def test_patterns_of_the_user(pattern: str, path: str, kept: bool) -> None:
    assert is_kept(path, (pattern,)) is kept


@pytest.mark.parametrize(
    ("path", "progress"),
    [
        ("run/last.ckpt", True),
        ("work/out/checkpoint-5/model.bin", True),
        ("run/deep/model.pt", True),
        ("run/notes/best.txt", True),
        ("run/train.log", False),
        ("run/checkpoints/train.log", False),
        ("run/checkpoints/events.out.tfevents.1.a", False),
        ("run/state.bin", False),
    ],
)
def test_only_checkpoints_are_progress(path: str, progress: bool) -> None:
    assert is_checkpoint(path, ("model.pt", "notes/best.txt")) is progress


@pytest.mark.parametrize("pattern", ["/data/ckpt", "~/out", "../out", "out/../../x"])
def test_pattern_outside_of_the_working_folder_is_refused(pattern: str) -> None:
    with pytest.raises(SpecError, match="is outside of the working folder, so its files are not kept"):
        check_patterns(["out", pattern])
    check_patterns(["out", "model-*.pt", "a/**/b..pt"])
