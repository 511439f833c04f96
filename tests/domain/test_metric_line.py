"""Templates of printed lines: which numbers they read, and which templates are refused."""

from __future__ import annotations

import math

import pytest

from hopyard.domain.metric_line import MetricLine, check_metric_lines
from hopyard.errors import SpecError


@pytest.mark.parametrize(
    ("template", "line", "expected"),
    [
        (
            "step {step}: train loss {train_loss}, val loss {val_loss}",
            "step 20: train loss 4.4879, val loss 4.4958",
            (20, {"train_loss": 4.4879, "val_loss": 4.4958}),
        ),
        (
            "Average loss: {loss}, Accuracy: {}/{} ({acc}%)",
            "Test set:  Average   loss: 0.4431, Accuracy: 348/400 (87%)",
            (0, {"loss": 0.4431, "acc": 87.0}),
        ),
        ("loss={loss}", "  3%|#   | 1/9 [00:01, loss=1.5e-03]", (0, {"loss": 0.0015})),
        ("ppl {val/ppl}", "ppl 1,234,567.5", (0, {"val/ppl": 1234567.5})),
        ("{a},{b}", "1,2", (0, {"a": 1.0, "b": 2.0})),
        ("loss {loss}", "\x1b[32mloss\x1b[0m \x1b[1m-.5\x1b[0m", (0, {"loss": -0.5})),
        ("{{x}} {x}", "{x} 3", (0, {"x": 3.0})),
        ("loss {loss}", "val_loss 3", None),
        ("loss {loss}", "loss infinite", None),
        ("loss {loss}", "loss none", None),
        ("(loss) {loss}", "loss 3", None),
        ("{loss} {acc}", "1" * 65536, None),
        ("{acc}% of {}", "1/2 0.5% of 4", (0, {"acc": 0.5})),
    ],
)
def test_line_has_metrics(template: str, line: str, expected: tuple[int, dict[str, float]] | None) -> None:
    assert MetricLine(template).read(line) == expected


def test_values_that_are_not_finite_are_kept() -> None:
    line = MetricLine("a {a} b {b}").read("a nan b -inf")
    assert line is not None
    assert math.isnan(line[1]["a"])
    assert line[1]["b"] == -math.inf


def test_lines_without_step_are_counted() -> None:
    line = MetricLine("acc {acc}")
    assert [line.read(text) for text in ("acc 1", "other", "acc 2")] == [
        (0, {"acc": 1.0}), None, (1, {"acc": 2.0}),
    ]  # fmt: skip


def test_line_without_a_whole_step_has_the_next_one() -> None:
    line = MetricLine("step {step}: loss {loss}")
    texts = ("1.5", "7", "1.25", "99999999999999999999", "nan", "3", "2e0", "9007199254740993")
    steps = [found[0] for text in texts if (found := line.read(f"step {text}: loss 1")) is not None]
    assert steps == [0, 7, 8, 9, 10, 3, 2, 3]


@pytest.mark.parametrize(
    "name", ["loss:.3f", "loss:>8", "loss!r:>8.2f", "loss:d", "loss: 6.2%", "loss.item():.4f"]
)
def test_format_of_python_is_refused_with_the_name(name: str) -> None:
    with pytest.raises(SpecError, match="has a format of Python") as refused:
        MetricLine(f"loss {{{name}}}")
    assert refused.value.hints == ("write the name alone: `{loss}`",)


def test_name_may_have_a_colon() -> None:
    assert MetricLine("{val:loss} {top:5}").read("1 2") == (0, {"val:loss": 1.0, "top:5": 2.0})


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("loss", "names no metric"),
        ("step {step}", "names no metric"),
        ("{} {}", "names no metric"),
        ("{a}{b}", "has no text between two numbers"),
        ("{a} {a}", "has `{a}` twice"),
        ("loss {a", "has a single `{`"),
        ("", "names no metric"),
    ],
)
def test_bad_template_is_refused(template: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_metric_lines((template,), what="metric_lines")
    assert problem in str(refused.value)
