from __future__ import annotations

import copy
import enum
import pickle
from typing import Any

import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.sdk.params import (
    Params,
    convert_override,
    read_overrides,
    recorded_values,
    resolve_params,
    unknown_overrides,
)

from .scripts import Replica


@pytest.mark.parametrize(
    ("override", "default", "expected"),
    [
        (1, 0.1, 1.0),
        ("1e-3", 0.1, 0.001),
        (10.0, 3, 10),
        ("1e3", 3, 1000),
        ("7", 3, 7),
        ("yes", False, True),
        (0, True, False),
        (3, "x", "3"),
        (True, "x", "true"),
        ("abc", None, "abc"),
        (None, None, None),
        (2.5, None, 2.5),
    ],
)
def test_override_is_converted_to_type_of_default(override: Any, default: Any, expected: Any) -> None:
    value = convert_override("p", override, default)
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    ("override", "default", "word"),
    [
        ("abc", 0.1, "a float"),
        (True, 0.1, "a float"),
        (None, 0.1, "a float"),
        (1.5, 3, "an int"),
        ("x", 3, "an int"),
        (True, 3, "an int"),
        ("inf", 3, "an int"),
        ("maybe", True, "true or false"),
        (2, True, "true or false"),
        (None, "x", "text"),
    ],
)
def test_an_override_of_the_wrong_type_is_refused_by_name(override: Any, default: Any, word: str) -> None:
    with pytest.raises(SpecError, match=rf"-p lr=.*: `lr` is {word}"):
        convert_override("lr", override, default)


@pytest.mark.parametrize(
    ("override", "default", "expected"),
    [
        ("[128, 64]", [32], [128, 64]),
        ("128,64", [32], [128, 64]),
        (64, [32, 32], [64]),
        ("0.5, 1", (0.9,), (0.5, 1.0)),
        ("(1, 2)", (3, 4), (1, 2)),
        ("a,b", [], ["a", "b"]),
        ("", ["a"], []),
        ('{"a": [1]}', {}, {"a": [1]}),
        ("{'a': None}", {"b": 1}, {"a": None}),
    ],
)
def test_list_or_dict_is_overridden_as_text(override: Any, default: Any, expected: Any) -> None:
    value = convert_override("p", override, default)
    assert value == expected and type(value) is type(expected)


def test_lists_are_recorded_as_text_and_wrong_ones_refused() -> None:
    values = resolve_params({"sizes": [1, 2], "lr": np.float32(0.5)}, {"sizes": "3"})
    assert values == {"sizes": [3], "lr": 0.5}
    assert recorded_values(values) == {"sizes": "[3]", "lr": 0.5}
    for override, default in (("x", [1]), ("{", {}), ("[1]", {}), (None, [1]), ("[1,", [1])):
        with pytest.raises(SpecError, match=r"-p sizes=.*: `sizes` is a (list|dict)"):
            convert_override("sizes", override, default)
    with pytest.raises(SpecError, match="default of `model` is a object"):
        resolve_params({"model": object()}, {})
    params = Params({"lr": 0.1})
    assert (params.get("lr"), params.get("wd", 3), params.items()) == (0.1, 3, [("lr", 0.1)])


def test_params_are_readable_as_attributes_and_items() -> None:
    p = Params({"lr": 0.1, "items": 3, "keys": 1})
    assert p.lr == p["lr"] == 0.1 and p.items == 3
    assert list(p) == ["lr", "items", "keys"] and len(p) == 3 and "lr" in p and "x" not in p
    assert repr(Params({"lr": 0.1, "name": "a"})) == "Params(lr=0.1, name='a')"
    q = Params({"lr": 0.1, "batch": 64})
    assert dict(q) == {"lr": 0.1, "batch": 64} and dict(**q) == dict(q)
    assert copy.deepcopy(q) == q and pickle.loads(pickle.dumps(q)) == q
    q.batch //= 2
    assert q["batch"] == 32
    with pytest.raises(AttributeError):
        _ = q.missing


def test_unknown_override_error_suggests_closest_name() -> None:
    assert "did you mean `batch_size`" in unknown_overrides({"batchsize": 1}, {"batch_size": 2, "lr": 3})[0]
    assert "it has lr" in unknown_overrides({"zzz": 1}, {"lr": 3})[0]
    assert "declares none" in unknown_overrides({"zzz": 1}, {})[0]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": [1]}', "3"])
def test_invalid_environment_variable_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="HOPYARD_PARAMS"):
        read_overrides(text)


def test_params_work_in_script(replica: Replica) -> None:
    code = (
        "import hopyard as hop\np = hop.params(lr=0.1, epochs=3)\nq = hop.params(seed=1)\nprint(p, q)\n"
        "hop.log(loss=1.0)\n"
    )
    done = replica.run(code, HOPYARD_PARAMS='{"lr": "1e-2", "seed": 7, "epoch": 1}')
    assert done.stdout.strip() == "Params(lr=0.01, epochs=3) Params(seed=7)"
    assert (
        done.stderr.strip()
        == "hopyard: -p epoch=…: the script has no parameter `epoch`; did you mean `epochs`?"
    )
    assert replica.events_of("params")[-1]["values"] == {"lr": 0.01, "epochs": 3, "seed": 7}
    evaluator = replica.run(code, HOPYARD_PARAMS='{"epoch": 1}', HOPYARD_EVALUATION='{"run": "x"}')
    assert evaluator.stderr == ""


def test_invalid_override_ends_script_with_reason(replica: Replica) -> None:
    done = replica.run(
        "import hopyard as hop\nhop.params(lr=0.1)\n", ok=False, HOPYARD_PARAMS='{"lr": "abc"}'
    )
    assert "-p lr=abc: `lr` is a float" in done.stderr
    assert "hint: its default is 0.1" in done.stderr


class Mode(str, enum.Enum):  # noqa: UP042 (its text is not its value)
    FAST = "fast"


def test_default_from_an_enum_is_its_value() -> None:
    assert resolve_params({"mode": Mode.FAST}, {}) == {"mode": "fast"}
    assert type(resolve_params({"mode": Mode.FAST}, {})["mode"]) is str
