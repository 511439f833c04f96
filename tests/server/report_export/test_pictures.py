from __future__ import annotations

import math
from xml.etree.ElementTree import fromstring

from hypothesis import example, given
from hypothesis import strategies as st

from hopyard.server.report_export.axes import PlotAxis, fit_axis, format_number
from hopyard.server.report_export.pictures import (
    PlotCurve,
    draw_curves,
    draw_histogram,
    draw_legend,
    draw_parallel,
    draw_scatter,
)

HOSTILE = "<script>\"'&"


def test_axis_has_round_ticks() -> None:
    assert [text for _, text in PlotAxis(0, 1).ticks(5)] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert [text for _, text in PlotAxis(1, 1e4, is_log=True).ticks(5)] == ["1", "10", "100", "1k", "10k"]
    assert PlotAxis(3, 3).ticks(5) == [(0.5, "3")]
    assert fit_axis([math.nan, math.inf]) is None
    assert fit_axis([-1, 0, 5], is_log=True) == PlotAxis(5, 5, True)
    assert [format_number(value) for value in (1500, 12345678, 3e-8, math.nan)] == [
        "1.5k",
        "12.3457M",
        "3e-08",
        "NaN",
    ]


def test_curve_has_gaps_where_values_are_not_finite() -> None:
    curve = PlotCurve("loss", 0, [0, 1, 2, 3], [1.0, math.nan, 0.5, 0.25])
    picture = fromstring(draw_curves([curve], PlotAxis(0, 3), label=HOSTILE, x_label=HOSTILE, is_log_y=False))
    (path,) = [each for each in picture if each.get("class") == "curve k0"]
    assert str(path.get("d")).count("M") == 2
    nothing = PlotCurve("a", 0, [0], [math.nan])
    assert draw_curves([nothing], PlotAxis(0, 1), label="", x_label="", is_log_y=False) == ""


def test_band_is_one_area() -> None:
    curve = PlotCurve("loss", 11, [0, 1], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])
    picture = fromstring(draw_curves([curve], PlotAxis(0, 1), label="", x_label="", is_log_y=True))
    (band,) = [each for each in picture if each.get("class") == "band k1"]
    assert str(band.get("d")).endswith("Z")


def test_legend_has_the_lines_of_parallel_coordinates() -> None:
    names = [f"run {number}" for number in range(11)]
    picture = fromstring(draw_parallel(["a", "b"], [(n, [1, 2]) for n in names], [PlotAxis(1, 2)] * 2, ""))
    legend = fromstring(draw_legend([(name, number) for number, name in enumerate(names)]))
    lines = [each for each in picture if each.find("title") is not None]
    marks = [path for entry in legend for path in entry.iter("path")]
    styles = [(each.get("class"), each.get("stroke-dasharray")) for each in lines]
    assert styles == [(each.get("class"), each.get("stroke-dasharray")) for each in marks]
    assert len(set(styles)) == len(names)


def test_pictures_are_well_formed_with_hostile_names() -> None:
    scatter = draw_scatter([(HOSTILE, 1, 2)], label=HOSTILE, x_label=HOSTILE, y_label=HOSTILE)
    assert [each.tag for each in fromstring(scatter) if each.get("class") == "dot k0"] == ["circle"]
    lines = [(HOSTILE, [1.0, None]), (HOSTILE, [2.0, 3.0])]
    fromstring(draw_parallel([HOSTILE, "b"], lines, [PlotAxis(1, 2), PlotAxis(3, 3)], HOSTILE))
    fromstring(f"<p>{draw_histogram([0, 1, 3], [2, 1], HOSTILE)}</p>")
    assert draw_histogram([0, 1], [1, 2], "") == draw_histogram([0, 1], [math.nan], "") == ""


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=4), st.booleans(), st.integers(2, 12))
@example([5e-324, 1e-323], False, 5)
@example([-1.7e308, 1.7e308], False, 5)
def test_ticks_of_any_values_are_on_the_axis(values: list[float], is_log: bool, count: int) -> None:
    axis = fit_axis(values, is_log=is_log)
    for place, text in () if axis is None else axis.ticks(count):
        assert -1e-6 <= place <= 1 + 1e-6 and text
