"""Which files are one checkpoint, and its step."""

from __future__ import annotations

import pytest

from hopyard.domain.checkpoint_units import group_checkpoints, has_last_file, is_whole, order_by_step, step_of

STEPS = {
    "out/ckpt.pt": None,
    "epoch=3-step=40.ckpt": 40,
    "last.ckpt": None,
    "last-v1.ckpt": None,
    "checkpoint-500": 500,
    "checkpoint_12.pth.tar": 12,
    "global_step10": 10,
    "iter_0000500": 500,
    "weights.07-0.25.weights.h5": 7,
    "model.12.keras": 12,
    "epoch_3": 3,
    "ckpt-2": 2,
    "500": 500,
    "resnet50.pt": None,
    "llama-7b.safetensors": None,
}


@pytest.mark.parametrize("name", STEPS)
def test_step_is_read_from_the_name(name: str) -> None:
    assert step_of(f"work/{name}") == STEPS[name]


def test_files_are_grouped_as_frameworks_write_them() -> None:
    groups = group_checkpoints(
        [
            "run/lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt",
            "run/lightning_logs/version_0/hparams.yaml",
            "run/epoch_3/latest.weights.h5",
            "run/epoch_3/random-state.pkl",
            "run/epoch_3/training_metadata.json",
            "run/epoch_4/sample.png",
            "run/tmp-epoch_5/latest.weights.h5",
            "work/out/ckpt.pt",
            "work/out/config.json",
            "work/out/checkpoint-5/model.safetensors",
            "work/out/checkpoint-5/trainer_state.json",
            "work/out/checkpoint-5/vocab.txt",
            "work/tf_ckpts/checkpoint",
            "work/tf_ckpts/ckpt-1.data-00000-of-00001",
            "work/tf_ckpts/ckpt-1.index",
            "work/checkpoints/7/d/x",
            "work/ckpts/state/optimizer.bin",
            "work/ckpts/state/model.safetensors",
            "work/ckpt/state.json",
            "work/notes.pt",
        ],
        ("out",),
    )
    assert {path: len(files) for path, files in groups.items()} == {
        "run/lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt": 1,
        "run/epoch_3": 3,
        "work/out/ckpt.pt": 1,
        "work/out/checkpoint-5": 3,
        "work/tf_ckpts/ckpt-1": 2,
        "work/checkpoints/7": 1,
        "work/ckpts/state": 2,
        "work/ckpt/state.json": 1,
    }
    assert order_by_step(groups)[:3] == [
        "run/lightning_logs/version_0/checkpoints/epoch=0-step=10.ckpt",
        "work/checkpoints/7",
        "work/out/checkpoint-5",
    ]
    assert step_of("run/epoch_3") == 3


def test_sharded_checkpoint_is_one_folder() -> None:
    sharded = [f"work/out/last.ckpt/{name}" for name in ("__0_0.distcp", "__1_0.distcp")]
    deepspeed = [
        f"work/out/best.ckpt/{name}"
        for name in ("latest", "checkpoint/mp_rank_00_model_states.pt", "checkpoint/zero_pp_rank_0_optim.pt")
    ]
    shards = ["work/out/model/__0_0.distcp"]
    groups = group_checkpoints([*sharded, *deepspeed, *shards], ("out",))
    assert groups == {
        "work/out/last.ckpt": tuple(sharded),
        "work/out/best.ckpt": tuple(sorted(deepspeed)),
        "work/out/model": tuple(shards),
    }
    assert [is_whole(groups[name]) for name in ("work/out/last.ckpt", "work/out/model")] == [False] * 2
    assert is_whole([*sharded, "work/out/last.ckpt/.metadata"])


def test_folder_is_whole_with_the_file_that_is_written_last() -> None:
    files = ["c-5/model.safetensors", "c-5/optimizer.pt", "c-5/scheduler.pt", "c-5/rng_state.pth"]
    assert not is_whole(files)
    assert is_whole([*files, "c-5/trainer_state.json"])
    assert not is_whole(["step_1/__0_0.distcp"])
    assert is_whole(["step_1/__0_0.distcp", "step_1/.metadata"])
    assert is_whole(["epoch_1/model.pt"])
    assert has_last_file([*files, "c-5/trainer_state.json"])
    assert has_last_file(["epoch_1/latest.weights.h5", "epoch_1/training_metadata.json"])
    assert not has_last_file(files) and not has_last_file(["epoch_1/model.pt"])
