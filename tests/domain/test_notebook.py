"""The cells of a notebook, and which variables a parameter sets."""

from __future__ import annotations

import json

import pytest

from hopyard.domain.notebook import Notebook, executed_path, notebook_of, read_notebook
from hopyard.domain.param_format import ParamStyle
from hopyard.domain.script_analysis.analysis import analyse_notebook
from hopyard.errors import SpecError

DECLARATIONS = """%matplotlib inline
lr: float = 1e-3  # of the optimizer
layers, name = [64, 32], 'x'
root = Path('data')
note: str
"""


def _text(*cells: str, tagged: int | None = None, language: str = "python") -> bytes:
    return json.dumps(
        {
            "cells": [{"cell_type": "markdown", "source": ["# text"]}]
            + [
                {
                    "cell_type": "code",
                    "source": cell.splitlines(keepends=True),
                    "metadata": {"tags": ["parameters"]} if index == tagged else {},
                }
                for index, cell in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"language": language, "name": "any"}},
            "nbformat": 4,
        }
    ).encode()


def test_parameters_cell_declares_variables() -> None:
    notebook = read_notebook(_text("import x", DECLARATIONS, tagged=1), "a.ipynb")
    assert notebook.declared() == {"lr": 1e-3, "layers": [64, 32], "name": "x", "root": ...}
    form = analyse_notebook("a.ipynb", _text("import x", DECLARATIONS, tagged=1))
    assert (form.style, form.script) == (ParamStyle.NOTEBOOK, "a.ipynb")
    assert form.source == "cell `parameters` of a.ipynb" and form.options["lr"].numeric
    assert form.find_option("layers") is not None and form.find_option("seed") is None


@pytest.mark.parametrize(
    ("cells", "takes"),
    [
        (("lr = 0.1", "print(lr)"), False),  # is set again after the first cell
        (("print(lr)",), True),
        (("lr = lr * 2",), True),
        (("lr += 1",), True),
        (("def f():\n    return lr\nlr = 1",), True),
        (("%%bash\necho $lr", "!echo lr"), False),
        (("%%time\nlr",), True),
        (("if True:\n    !python train.py --rate {lr}",), True),
        (("this is not python",), False),
        (("x = (a\n     % lr)",), True),
        (("if lr:  # enough?\n    pass",), True),
        (("%time x\nif lr:  # enough?\n    pass",), True),
    ],
)
def test_value_has_effect_where_it_is_read_before_it_is_set(cells: tuple[str, ...], takes: bool) -> None:
    assert read_notebook(_text(*cells), "a.ipynb").takes("lr") is takes


def test_sdk_and_other_languages_take_all_params() -> None:
    sdk = analyse_notebook("a.ipynb", _text("import hopyard as hop\n!ls\np = hop.params(lr=1)"))
    assert sdk.style is ParamStyle.SDK
    assert read_notebook(_text("lr <- 0.1", language="R"), "a.ipynb").takes("lr")


def test_old_format_and_damaged_files() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": "lr = 1"}]}], "nbformat": 3}
    assert read_notebook(json.dumps(old).encode(), "a.ipynb") == Notebook("", ("lr = 1",))
    for text in (b"", b"[1]", b"{}", b'{"cells": [{}]}', b"\xff\xfe"):
        with pytest.raises(SpecError, match=r"a\.ipynb is not a notebook"):
            read_notebook(text, "a.ipynb")


def test_names_of_notebook() -> None:
    assert executed_path("dir/a.ipynb") == "dir/a.executed.ipynb"
    assert notebook_of(["python", "-u", "-m", "hopyard.sdk.notebook", "a.ipynb"]) == "a.ipynb"
    assert notebook_of(["python", "a.py"]) == ""
