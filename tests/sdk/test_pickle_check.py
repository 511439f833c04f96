"""Objects that no checkpoint can hold are named when they are bound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.sdk.pickle_check import check_bound_object
from hopyard.sdk.warn_once import _shown_kinds


class Config:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: Config(rate=0.1, activation=lambda x: x), "cfg.activation"),
        (lambda: {"lock": [1, threading.Lock()]}, r"cfg\['lock'\]\[1\]"),
        (lambda: (i for i in range(3)), "cfg"),
        (lambda: np.array([threading.Lock()], dtype=object), "cfg"),
    ],
)
def test_part_that_does_not_pickle_is_named(make: Callable[[], Any], path: str) -> None:
    with pytest.raises(SpecError, match=rf"hop.bind: `{path}` cannot be saved: "):
        check_bound_object("cfg", make())


def test_other_objects_pass(capsys: pytest.CaptureFixture[str]) -> None:
    for value in (1, None, np.zeros(3), {"a": [Config(x=np.ones(2))]}, len, Config, lambda: 0, bytes(2**25)):
        check_bound_object("it", value)
    assert capsys.readouterr().err == ""
    _shown_kinds.discard("callable-counter")
    check_bound_object("counter", Counter())
    assert "`counter` is callable" in capsys.readouterr().err
