"""Finds a trainable in a user's code, and reports a missing one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.errors import SpecError
from hopyard.trainables.config import Config
from hopyard.trainables.load import load, load_attribute

WHOLE = """
from pathlib import Path
with Path(__file__).with_name("runs").open("a") as file:
    file.write("x")

def init(config): return {"w": config.lr}
def train(state, partition, config): return None
def evaluate(state, partition, config): return {"loss": state["w"]}

class Kept:
    def init(self, config): return 1
    def train(self, state, partition, config): return state
    def evaluate(self, state, partition, config): return {}

class Asks(Kept):
    def __init__(self, size): self.size = size

class Lacking:
    def init(self, config): return 1
    def train(self, state, partition, config): return state

class Wrong(Kept):
    def train(self, state, partition): return state

there = Kept()
"""


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    before, paths = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = paths
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_module_class_and_instance_are_loaded(code: Path) -> None:
    (code / "mine.py").write_text(WHOLE)
    config = Config({"lr": 0.5})
    assert load("mine.py", code).init(config) == {"w": 0.5}
    assert load("mine.py:Kept", code).init(config) == 1
    assert load("mine.py:there", code) is load("mine:there", code)
    assert (code / "runs").read_text() == "x", "the file is run once"
    (code / "inner").mkdir()
    (code / "inner" / "deep.py").write_text("from mine import Kept\n\nclass Mine(Kept):\n    pass\n")
    assert type(load("inner/deep.py:Mine", code)).__mro__[1] is type(load("mine.py:there", code))
    assert type(load("inner.deep:Mine", code)).__name__ == "Mine"
    assert (code / "runs").read_text() == "x"


def test_file_named_like_standard_module_is_loaded(code: Path) -> None:
    (code / "random.py").write_text(WHOLE)
    assert load("random.py:Kept", code)
    assert hasattr(sys.modules["random"], "getstate")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("mine.py:Kep", "`mine.py` has no `Kep`", "did you mean `Kept`"),
        ("min.py:Kept", "no file `min.py`", "did you mean `mine.py`"),
        ("nowhere:Kept", "no module `nowhere`", "put it in"),
        ("mine.py:", "is not the name of a trainable", "use the form"),
        (":Kept", "is not the name of a trainable", "use the form"),
        ("mine.py:Asks", "missing 1 required positional argument: 'size'", "remove the arguments of"),
        ("mine.py:Lacking", r"`Lacking` has no `evaluate\(state, partition, config\)`", "make a trainable"),
        (
            "mine.py:Wrong",
            r"`train\(state, partition\)` cannot be called as train\(state, partition, config\): too many",
            "make a trainable",
        ),
        ("empty.py", r"the module has no `init\(config\)`", "make a trainable"),
    ],
)
def test_invalid_trainables_are_reported(code: Path, text: str, message: str, hint: str) -> None:
    (code / "mine.py").write_text(WHOLE)
    (code / "empty.py").write_text("x = 1\n")
    with pytest.raises(SpecError, match=message) as error:
        load(text, code)
    assert any(hint in one for one in error.value.hints)


def test_user_errors_include_traceback(code: Path) -> None:
    (code / "broken.py").write_text("def deep():\n    return 1 / 0\n\ndeep()\n")
    with pytest.raises(SpecError) as error:
        load("broken.py:X", code)
    assert error.value.message.startswith("`broken.py` cannot be imported:\n  File ")
    assert '  File "broken.py", line 2, in deep' in error.value.message and error.value.message.endswith(
        "ZeroDivisionError: division by zero"
    )
    assert "importlib" not in error.value.message
    (code / "asks.py").write_text(
        "from hopyard.domain.ids import check_name\ncheck_name('a b', subject='--name')\n"
    )
    with pytest.raises(SpecError) as error:
        load("asks.py:X", code)
    refused = error.value.message.splitlines()
    assert refused[:3] == [
        "`asks.py` cannot be imported:",
        '  File "asks.py", line 2, in <module>',
        "    check_name('a b', subject='--name')",
    ]
    assert refused[-1].startswith("--name: ") and "hopyard" not in error.value.message
    assert error.value.hints, "ours come with theirs"
    (code / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(SpecError, match="No module named 'no_such_package'") as error:
        load("needs:X", code)
    assert any(
        "`requirements:`" in hint and "pip install no_such_package" in hint for hint in error.value.hints
    )
    (code / "bad.py").write_text("def f(:\n")
    with pytest.raises(SpecError, match=r'File "bad\.py", line 1\n.*\n.*\n?SyntaxError'):
        load("bad.py:X", code)
    (code / "broken.py").write_text("class X:\n    pass\n")
    assert load_attribute("broken.py:X", code), "a file that failed is run again"


def test_config_error_names_available_values() -> None:
    config = Config({"lr": 0.1, "width": 3}, trial="7", seed=2, epoch=1, epochs=5)
    assert (config.lr, config["width"], config.trial, config.seed, config.epoch, config.epochs) == (
        0.1,
        3,
        "7",
        2,
        1,
        5,
    )
    assert (
        dict(config) == {"lr": 0.1, "width": 3}
        and "lr" in config
        and len(config) == 2
        and config.get("depth", 4) == 4
    )
    assert config.at(3).epoch == 3 and config.at(3).epochs == 5
    with pytest.raises(AttributeError, match="no parameter `widht`; it has lr, width; did you mean `width`"):
        _ = config.widht
    with pytest.raises(KeyError, match="did you mean"):
        config["widht"]
    with pytest.raises(SpecError, match="own `epochs`"):
        Config({"epochs": 3})
