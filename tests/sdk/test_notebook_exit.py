"""The end of a notebook by `sys.exit` in a cell."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hopyard.sdk.notebook import _report_error


@pytest.mark.parametrize(
    ("name", "text", "code", "printed"),
    [
        ("SystemExit", "3", 3, "SystemExit: 3 (a.ipynb, cell 2)\n"),
        ("SystemExit", "-1", 255, "SystemExit: -1 (a.ipynb, cell 2)\n"),
        ("SystemExit", "0", 0, ""),
        ("PreemptedExit", "75", 75, ""),
        ("SystemExit", "no data", 1, "no data\n"),
    ],
)
def test_exit_of_a_cell_is_that_of_the_run_and_names_the_cell(
    name: str, text: str, code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = SimpleNamespace(ename=name, evalue=text, exec_count=2, traceback=[])
    assert _report_error(error, "a.ipynb", is_shifted=False) == code
    assert capsys.readouterr().err == printed
