"""Hyperparameters that a script changes are applied to restored optimizers and schedulers."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.sdk import bound_objects as binding
from hopyard.sdk import checkpoints
from hopyard.sdk.bound_objects import BoundObjects

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def built(lr: float, *, steps: int = 0, **options: Any) -> tuple[Any, Any, Any]:
    """Returns an optimizer with two groups and its scheduler after some steps, and what a script binds."""
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    groups = [{"params": [first]}, {"params": [second], "lr": lr / 10}]
    optimizer = torch.optim.Adam(groups, lr=lr, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    bound = BoundObjects()
    binding.bind_objects(bound, {"parts": {"opt": optimizer}, "schedule": scheduler})
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    return optimizer, scheduler, bound


def resumed(tmp_path: Any, saved: BoundObjects, bound: BoundObjects, *, recorded: bool = True) -> None:
    checkpoints.write_checkpoint(
        str(tmp_path),
        1,
        binding.bound_objects(saved),
        [],
        {},
        settings=binding.built_settings(saved) if recorded else None,
    )
    binding.restore(bound, checkpoints.read_checkpoint(str(tmp_path / "1")))


def rates(optimizer: Any) -> list[float]:
    return [round(float(group["lr"]), 9) for group in optimizer.param_groups]


def test_changed_rate_scales_the_position_of_the_schedule(tmp_path: Any, capsys: Any) -> None:
    _, _, saved = built(0.1, steps=2)
    optimizer, scheduler, bound = built(0.01, betas=(0.5, 0.9))
    resumed(tmp_path, saved, bound)
    assert rates(optimizer) == [0.0025, 0.00025]
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.9)
    assert scheduler.last_epoch == 2 and scheduler.base_lrs == [0.01, 0.001]
    optimizer.step()
    scheduler.step()
    assert rates(optimizer) == [0.00125, 0.000125]
    assert "`parts.opt`: the script has changed lr: 0.0025 replaces 0.025" in capsys.readouterr().err


def test_unchanged_settings_stay_as_restored(tmp_path: Any, capsys: Any) -> None:
    _, _, saved = built(0.1, steps=3, weight_decay=0.2)
    optimizer, scheduler, bound = built(0.1, weight_decay=0.2)
    resumed(tmp_path, saved, bound)
    assert rates(optimizer) == [0.0125, 0.00125] and scheduler.get_last_lr() == [0.0125, 0.00125]
    assert "changed" not in capsys.readouterr().err


def test_contradiction_with_a_checkpoint_without_settings_is_reported(tmp_path: Any, capsys: Any) -> None:
    _, _, saved = built(0.1)
    optimizer, _, bound = built(0.02)
    resumed(tmp_path, saved, bound, recorded=False)
    assert rates(optimizer) == [0.1, 0.01]
    message = "`parts.opt` trains with lr 0.1 of the checkpoint; the script has built it with 0.02"
    assert message in capsys.readouterr().err
