"""Which optimizers follow a changed parameter."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.sdk.live_settings import follow_in_optimizers
from hopyard.sdk.restored_hyperparameters import capture_settings


class Optimizer:
    def __init__(self, *rates: float, **settings: Any) -> None:
        self.param_groups = [{"params": [], "lr": rate, **settings} for rate in rates]

    def state_dict(self) -> dict[str, Any]:
        return {"param_groups": self.param_groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.param_groups = state["param_groups"]


def change(objects: dict[str, Optimizer], values: dict[str, Any], **new: Any) -> list[str]:
    """Sets parameters, and returns the texts of the answer."""
    changes = {name: (values[name], value) for name, value in new.items()}
    return follow_in_optimizers(objects, capture_settings(objects), changes, {}, values)


@pytest.mark.parametrize(
    ("names", "generator", "discriminator", "name"),
    [
        (("og", "od"), 0.1, 0.01, "lr_d"),  # by the value alone
        (("og", "od"), 0.1, 0.01, "learning_rate_d"),
        (("opt_g", "opt_d"), 0.1, 0.1, "lr_d"),  # equal values: by the name
        (("optG", "optD"), 0.1, 0.1, "lrD"),
        (("opt_g", "opt_discriminator"), 0.1, 0.1, "d_lr"),
    ],
)
def test_rate_of_another_name_changes_its_optimizer(
    names: tuple[str, str], generator: float, discriminator: float, name: str
) -> None:
    objects = dict(zip(names, (Optimizer(generator), Optimizer(discriminator)), strict=True))
    texts = change(objects, {"lr": generator, name: discriminator}, **{name: 0.5})
    rates = [each.param_groups[0]["lr"] for each in objects.values()]
    assert rates == [generator, 0.5]
    assert texts[-1] == f"lr of `{names[1]}` {discriminator} -> 0.5"


def test_answer_names_optimizers_that_stay_because_two_parameters_are_equal() -> None:
    objects = {"first": Optimizer(0.1), "second": Optimizer(0.1)}
    texts = change(objects, {"lr_g": 0.1, "lr_d": 0.1}, lr_d=0.5)
    assert texts == ["lr of `first` stays 0.1", "lr of `second` stays 0.1"]


def test_rates_of_groups_from_two_parameters_stay_apart() -> None:
    objects = {"optimizer": Optimizer(0.1, 0.01)}
    assert change(objects, {"lr": 0.01, "lr_head": 0.1}, lr_head=0.2) == ["lr of `optimizer` 0.1 -> 0.2"]
    assert [group["lr"] for group in objects["optimizer"].param_groups] == [0.2, 0.01]


@pytest.mark.parametrize("name", ["lr_gamma", "min_lr", "lr_decay", "batch_size"])
def test_parameters_of_a_schedule_are_no_rates(name: str) -> None:
    objects = {"optimizer": Optimizer(0.2, 0.1)}
    assert change(objects, {"lr": 0.2, name: 0.1}, **{name: 0.5}) == []
    assert [group["lr"] for group in objects["optimizer"].param_groups] == [0.2, 0.1]


def test_list_of_another_length_stays() -> None:
    objects = {"adam": Optimizer(0.1, betas=(0.9, 0.99))}
    values = {"betas": (0.9, 0.99)}
    assert change(objects, values, betas=(0.5,)) == ["betas of `adam` stays [0.9, 0.99]"]
    assert change(objects, values, betas=(0.5, 0.9)) == ["betas of `adam` [0.9, 0.99] -> [0.5, 0.9]"]
    assert objects["adam"].param_groups[0]["betas"] == (0.5, 0.9)
