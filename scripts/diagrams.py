"""Draw the diagrams of the documentation: docs/images/*.svg (`python scripts/diagrams.py [--check]`).

Each diagram is plain SVG without scripts or fonts of other hosts. Its colours follow the reader's light or
dark mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
STYLE = """
  svg { --paper: #ffffff; --ink: #1c2733; --soft: #55636f; --line: #7d8b98; --box: #eef2f5; --mark: #0b7a6f; --markbox: #d3efeb;
        --warm: #a84c07; --warmbox: #fbe3cd; --cool: #2458b5; --coolbox: #dbe6fb; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #1b1f27; --ink: #e6ebf0; --soft: #a9b5c1; --line: #7f8d9b; --box: #2a313c; --mark: #57cdbf; --markbox: #143f3b;
          --warm: #f3a462; --warmbox: #4a2d14; --cool: #8fb4f7; --coolbox: #213a66; }
  }
  text { font: 14px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
  .small { font-size: 12px; } .soft { fill: var(--soft); } .bold { font-weight: 600; } .mid { text-anchor: middle; } .end { text-anchor: end; }
  .paper { fill: var(--paper); } .box { fill: var(--box); stroke: var(--line); } .mark { fill: var(--markbox); stroke: var(--mark); }
  .warm { fill: var(--warmbox); stroke: var(--warm); } .cool { fill: var(--coolbox); stroke: var(--cool); }
  .frame { fill: none; stroke: var(--line); stroke-dasharray: 5 4; } .line { stroke: var(--line); fill: none; stroke-width: 1.5; }
  .dashed { stroke-dasharray: 5 4; } .head { fill: var(--line); stroke: none; } .thin { stroke-width: 1; }
"""  # noqa: E501
HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path class="head" d="M0 0 8 4 0 8z"/></marker>'
)


class Drawing:
    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title, self._parts = (
            (width, height),
            title,
            [f'<rect class="paper" width="{width}" height="{height}" rx="10"/>'],
        )

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: Sequence[str] = (),
        kind: str = "box",
        *,
        first: str = "bold",
    ) -> None:
        """A rectangle with lines of text in its middle; the first line is in bold."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{min(6, height / 5):g}"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for number, words in enumerate(lines):
            self.text(
                x + width / 2, top + number * 18, words, f"mid {first if number == 0 else 'small soft'}"
            )

    def frame(self, x: float, y: float, width: float, height: float, words: str) -> None:
        self._parts.append(
            f'<rect class="frame" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
        )
        self.text(x + 12, y + 20, words, "small soft")

    def arrow(
        self,
        points: Sequence[tuple[float, float]],
        words: str = "",
        *,
        at: tuple[float, float] | None = None,
        both: bool = False,
        kind: str = "",
        side: str = "mid",
    ) -> None:
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self._parts.append(f'<path class="line {kind}" d="{path}"{start} marker-end="url(#head)"/>')
        if words:
            (x, y), (v, w) = points[0], points[-1]
            place = at or ((x + v) / 2, (y + w) / 2 - 7)
            self.text(*place, words, f"small soft {side}")

    def line(self, x: float, y: float, v: float, w: float, kind: str = "") -> None:
        self._parts.append(f'<path class="line {kind}" d="M{x:g} {y:g} L{v:g} {w:g}"/>')

    def svg(self) -> str:
        width, height = self._size
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{STYLE}</style>\n<defs>{HEAD}</defs>\n{body}\n"
            "</svg>\n"
        )


def processes() -> Drawing:
    draw = Drawing(880, 430, "The processes of Hopyard on one machine")
    draw.box(30, 60, 150, 56, ("hop", "command line"))
    draw.box(30, 170, 150, 56, ("your programs", "HTTP API, Python"))
    draw.frame(230, 24, 620, 384, "one machine, one home folder")
    draw.box(270, 60, 220, 166, (), "mark")
    draw.text(380, 84, "server", "mid bold")
    for number, words in enumerate(("HTTP API", "scheduling loop", "reconciler", "tracking", "local engine")):
        draw.text(380, 110 + number * 22, words, "mid small soft")
    draw.box(270, 320, 220, 60, ("home folder", "database, blobs, streams"))
    draw.box(590, 60, 220, 50, ("spawner", "forks replicas"))
    draw.box(590, 176, 220, 60, ("replica", "one per replica of an attempt"), "mark")
    draw.box(590, 320, 220, 60, ("your script", "own session, own cgroup"), "cool")
    draw.arrow([(180, 88), (270, 88)], "socket", at=(205, 80), both=True)
    draw.arrow([(180, 198), (270, 198)], "port", at=(205, 190), both=True)
    draw.arrow([(490, 85), (590, 85)], "start")
    draw.arrow([(700, 110), (700, 176)], "fork", at=(708, 146), side="")
    draw.arrow([(700, 236), (700, 320)], "start, stop", at=(708, 282), side="")
    draw.arrow([(590, 206), (490, 206)], "streams, status", at=(540, 197), both=True)
    draw.arrow([(380, 226), (380, 320)], both=True)
    draw.arrow([(590, 350), (490, 350)], "output to files", at=(540, 341))
    return draw


def run_states() -> Drawing:
    draw = Drawing(880, 330, "The phases of a run")
    y = 120
    draw.box(40, y, 120, 50, ("queued",), "cool")
    draw.box(230, y, 120, 50, ("starting",))
    draw.box(420, y, 120, 50, ("running",), "mark")
    draw.box(420, 240, 120, 50, ("stopping",))
    draw.box(690, 60, 140, 46, ("succeeded",))
    draw.box(690, 124, 140, 46, ("failed",), "warm")
    draw.box(690, 242, 140, 46, ("cancelled",))
    draw.arrow([(160, y + 25), (230, y + 25)], "placed")
    draw.arrow([(350, y + 25), (420, y + 25)], "processes", at=(385, y + 17))
    draw.arrow([(540, y + 15), (615, y + 15), (615, 83), (690, 83)], "exit code 0", at=(640, 76))
    draw.arrow([(540, y + 30), (690, y + 30)], "any other end", at=(630, y + 46))
    draw.arrow([(480, y + 50), (480, 240)], "stop requested", at=(488, 208), side="")
    draw.arrow([(540, 265), (690, 265)], "ended", at=(630, 258))
    draw.arrow([(290, y + 50), (290, 265), (420, 265)])
    draw.arrow(
        [(480, y), (480, 56), (100, 56), (100, y)],
        "preempted, lost, or a node fault: a new attempt from the newest checkpoint",
        at=(290, 46),
    )
    draw.arrow([(100, y + 50), (100, 310), (760, 310), (760, 288)], "cancelled while it waits", at=(300, 303))
    return draw


def queues() -> Drawing:
    draw = Drawing(880, 400, "A queue tree with a guarantee, a use, and borrowed GPUs")
    draw.box(360, 24, 160, 46, ("cluster", "24 GPUs"))
    draw.box(120, 120, 220, 46, ("research", "guarantee 16"))
    draw.box(600, 120, 220, 46, ("production", "guarantee 8"))
    draw.box(40, 220, 180, 46, ("vision", "guarantee 8"))
    draw.box(260, 220, 180, 46, ("nlp", "guarantee 8"))
    for points in (
        [(440, 70), (440, 94), (230, 94), (230, 120)],
        [(440, 70), (440, 94), (710, 94), (710, 120)],
        [(230, 166), (230, 194), (130, 194), (130, 220)],
        [(230, 166), (230, 194), (350, 194), (350, 220)],
    ):
        draw.arrow(points)
    _gpus(draw, 40, 290, ["mark"] * 8 + ["warm"] * 4)
    draw.text(40, 356, "uses 12: 8 guaranteed, 4 borrowed", "small soft")
    _gpus(draw, 262, 290, ["mark"] * 4)
    draw.text(262, 326, "uses 4", "small soft")
    _gpus(draw, 622, 190, ["mark"] * 6 + ["box"] * 2)
    draw.text(622, 248, "uses 6, 2 are idle", "small soft")
    draw.box(490, 300, 18, 18, (), "mark")
    draw.text(516, 314, "used within the guarantee", "small")
    draw.box(490, 328, 18, 18, (), "warm")
    draw.text(516, 342, "borrowed: nlp lends 4 that it does not use", "small")
    draw.box(490, 356, 18, 18, (), "box")
    draw.text(516, 370, "idle: any queue may borrow it", "small")
    return draw


def _gpus(draw: Drawing, x: float, y: float, kinds: Sequence[str]) -> None:
    for number, kind in enumerate(kinds):
        draw.box(x + number % 8 * 22, y + number // 8 * 24, 18, 18, (), kind)


def backfill() -> Drawing:
    draw = Drawing(880, 360, "Backfill: a small run starts early because it ends before a promised start")
    left, hour, top, row = 110.0, 120.0, 60.0, 52.0
    for number in range(4):
        draw.text(left - 14, top + number * row + 27, f"GPU {number}", "small soft end")
        draw.line(left, top + number * row + 44, left + 6 * hour, top + number * row + 44, "thin")
    for number in range(7):
        draw.line(left + number * hour, top - 8, left + number * hour, top + 4 * row + 4, "thin dashed")
        draw.text(
            left + number * hour,
            top + 4 * row + 24,
            "now" if number == 0 else f"+{number} h",
            "small soft mid",
        )
    draw.box(left, top, 3 * hour, 40, ("run A, GPUs 0 and 1, until +3 h",), "box", first="")
    draw.box(left, top + row, 3 * hour, 40, (), "box")
    draw.box(
        left + 3 * hour, top, 2.6 * hour, 4 * row - 12, ("run B: 4 GPUs", "promised start: +3 h"), "cool"
    )
    draw.box(left, top + 2 * row, 2 * hour, 40, ("run C: --time 2h, backfilled",), "mark", first="")
    draw.box(left, top + 3 * row, 3 * hour, 40, ("run D: no limit, waits",), "frame", first="small soft")
    draw.text(
        left,
        top + 4 * row + 56,
        "B needs 4 GPUs and gets a promise at +3 h. C ends before +3 h and starts now.",
        "small",
    )
    draw.text(
        left,
        top + 4 * row + 76,
        "D has no time limit and could still run at +3 h, so it waits behind B (reason: behind).",
        "small",
    )
    return draw


def mop() -> Drawing:
    draw = Drawing(
        880,
        300,
        "Model hopper parallelism: three trials hop between three workers; one epoch is every partition once",
    )
    left, step, top, row = 190.0, 200.0, 56.0, 64.0
    kinds = {"1": "mark", "2": "cool", "3": "warm"}
    for number, trials in enumerate((("1", "3", "2"), ("2", "1", "3"), ("3", "2", "1"))):
        y = top + number * row
        draw.text(20, y + 18, f"worker {number}", "bold")
        draw.text(20, y + 36, f"holds partition {number}", "small soft")
        for slot, trial in enumerate(trials):
            draw.box(left + slot * step, y, step - 50, 44, (f"trial {trial}",), kinds[trial])
    for slot in range(2):
        x = left + slot * step + step - 50
        for a, b in ((0, 1), (1, 2)):
            draw.arrow([(x, top + a * row + 22), (x + 50, top + b * row + 22)], kind="dashed")
        draw.arrow([(x, top + 2 * row + 22), (x + 50, top + 22)], kind="dashed")
    draw.arrow(
        [(left, top + 3 * row + 4), (left + 3 * step - 50, top + 3 * row + 4)],
        "time: one epoch of each trial",
        at=(left + 1.4 * step, top + 3 * row + 24),
    )
    draw.text(
        20,
        288,
        "The data stays. A trial's state (weights, optimiser, random numbers) moves: a hop.",
        "small soft",
    )
    return draw


LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("commands", ("cli",)),
    ("composition roots", ("app", "simulator", "spark", "study_app", "backup")),
    ("programs", ("server", "replica", "client", "mop_runtime")),
    ("studies, left to right", ("studies", "trainables", "trial_state")),
    ("effects", ("controller", "tracking", "sdk")),
    ("access to the server", ("api_client",)),
    ("adapters and decisions", ("engines", "stores", "scheduler", "searchers", "mop", "datasets", "config")),
    ("contracts", ("interfaces",)),
    ("nouns", ("domain",)),
    ("foundation, left to right", ("container_engine", "file_locks", "private_files", "errors")),
)
PURE = ("scheduler", "searchers", "mop", "domain")


def rooms() -> Drawing:
    draw = Drawing(
        880, 40 + 56 * len(LAYERS) + 44, "The packages of Hopyard in layers; imports go downwards only"
    )
    for number, (name, members) in enumerate(LAYERS):
        y = 24 + number * 56
        draw.text(24, y + 27, name, "small soft")
        width = 666 / len(members)
        for place, member in enumerate(members):
            draw.box(
                190 + place * width,
                y,
                width - 8,
                42,
                (member,),
                "mark" if member in PURE else "box",
                first="small" if len(members) > 5 else "",
            )
    y = 24 + len(LAYERS) * 56
    draw.arrow([(174, 30), (174, y - 14)])
    draw.box(190, y + 6, 18, 18, (), "mark")
    draw.text(216, y + 20, "decisions: pure code without socket, clock or thread", "small")
    return draw


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "processes": processes,
    "run-states": run_states,
    "queues": queues,
    "backfill": backfill,
    "mop": mop,
    "rooms": rooms,
}


def main(check: bool) -> int:
    stale = []
    for name, draw in DRAWINGS.items():
        file, text = IMAGES / f"{name}.svg", draw().svg()
        if not file.exists() or file.read_text() != text:
            stale.append(file.name)
            if not check:
                file.write_text(text)
    if check and stale:
        print(
            f"error: docs/images differs from scripts/diagrams.py: {', '.join(stale)}\n"
            "hint: run `python scripts/diagrams.py`",
            file=sys.stderr,
        )
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
