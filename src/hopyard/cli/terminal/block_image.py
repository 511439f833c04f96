"""Draws pictures and histograms with characters. Pure: values in, lines of text out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hopyard.cli.terminal.png_decoder import Bitmap

_UPPER_HALF = "\u2580"
_GREYS = " .:-=+*#%@"
_BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_PLAIN_BARS = " .:-=+*#@"


def draw_picture(picture: Bitmap, *, width: int, height: int, colour: bool) -> list[str]:
    """Returns rows of at most `width` columns and `height` rows. colour: each character shows two pixels in
    24-bit colours; without, brightness is a character."""
    scale = min(width / picture.width, 2 * height / picture.height, max(1.0, 32 / picture.width))
    columns, rows = max(1, round(picture.width * scale)), max(1, round(picture.height * scale / 2))
    pixels = _resample(picture, columns, 2 * rows)
    lines: list[str] = []
    for row in range(rows):
        upper, lower = pixels[2 * row], pixels[2 * row + 1]
        if colour:
            cells = [
                f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m{_UPPER_HALF}"
                for a, b in zip(upper, lower, strict=True)
            ]
            lines.append("".join(cells) + "\x1b[0m")
        else:
            lines.append("".join(_grey(a, b) for a, b in zip(upper, lower, strict=True)).rstrip())
    return lines


def _grey(upper: Sequence[int], lower: Sequence[int]) -> str:
    brightness = sum(0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2] for p in (upper, lower)) / 2
    return _GREYS[min(int(brightness / 256 * len(_GREYS)), len(_GREYS) - 1)]


def _resample(picture: Bitmap, columns: int, rows: int) -> list[list[tuple[int, int, int]]]:
    """Returns the mean colour of the pixels of each cell."""
    result: list[list[tuple[int, int, int]]] = []
    for row in range(rows):
        ys = _span(row, rows, picture.height)
        line: list[tuple[int, int, int]] = []
        for column in range(columns):
            xs = _span(column, columns, picture.width)
            cell = [picture.pixel(x, y) for y in ys for x in xs]
            count = len(cell)
            line.append(
                (
                    sum(pixel[0] for pixel in cell) // count,
                    sum(pixel[1] for pixel in cell) // count,
                    sum(pixel[2] for pixel in cell) // count,
                )
            )
        result.append(line)
    return result


def _span(position: int, cells: int, size: int) -> range:
    begin = min(position * size // cells, size - 1)
    return range(begin, max(begin + 1, (position + 1) * size // cells))


def draw_bars(
    edges: Sequence[float], counts: Sequence[float], low: float, high: float, *, columns: int, unicode: bool
) -> str:
    """Returns one row of `columns` bars: the share of the counts between `low` and `high` in each column.
    `low` and `high` are finite. Bins without a finite range are left out."""
    shares = [0.0] * columns
    # a quarter of all, so that no difference of finite values overflows
    low, high, edges = low / 4, high / 4, [edge / 4 for edge in edges]
    width = (high - low) / columns
    for count, begin, end in zip(counts, edges, edges[1:], strict=False):
        if not (count > 0 and width > 0 and all(map(math.isfinite, (count, begin, end)))):
            continue
        first = min(max(int((begin - low) / width), 0), columns - 1)
        last = min(max(math.ceil((end - low) / width) - 1, first), columns - 1)
        for column in range(first, last + 1):
            left, right = max(begin, low + column * width), min(end, low + (column + 1) * width)
            part = (right - left) / (end - begin) if end > begin else 1 / (last - first + 1)
            shares[column] += count * max(part, 0.0)
    most = max(shares)
    bars = _BARS if unicode else _PLAIN_BARS
    if not most > 0:
        return " " * columns
    return "".join(
        bars[0 if share <= 0 else max(1, round(share / most * (len(bars) - 1)))] for share in shares
    )
