"""What user code logs and prints in a unit belongs to its trial."""

from __future__ import annotations

import sys

import pytest

import hopyard as hop
from hopyard.mop_runtime.worker.trial_output import trial_output
from hopyard.sdk import session


def test_output_of_unit_names_its_trial(capsys: pytest.CaptureFixture[str]) -> None:
    with trial_output("7") as metrics:
        hop.log(loss=3.0, step=4)
        hop.log({"loss": 1, "acc": 0.5})
        print("one", "line")
        sys.stdout.write("two\nlines, ")
        sys.stdout.write("the last without an end")
        sys.stdout.flush()
        hop.log(loss="much", acc=0.5)  # type: ignore[arg-type]  # it is skipped, and ends no training
    print()
    print("outside")
    assert metrics.means() == {"loss": 2.0, "acc": 0.5}
    assert capsys.readouterr().out.splitlines() == [
        "trial 7: one line",
        "trial 7: two",
        "trial 7: lines, the last without an end",
        "outside",
    ]
    assert session.metric_sink is None


def test_stdout_that_user_code_replaced_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    with pytest.raises(ZeroDivisionError), trial_output("1"):
        sys.stdout = replaced = sys.stderr
        raise ZeroDivisionError
    assert sys.stdout is replaced
