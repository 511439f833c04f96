"""Record the README's transcripts and its picture from real commands.

    make demo && .venv/bin/python scripts/record_session.py

Runs every scene with a home of its own, as a user `alice`. The output replaces the block behind
`<!-- recorded: SCENE -->` in README.md. The scenes named in PICTURE make docs/images/session.svg.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 92
THEME = TerminalTheme((24, 29, 38), (222, 228, 234), [(0, 0, 0)] * 8, [(255, 255, 255)] * 8)
QUEUES = """default: vision
queues:
  research:
    guarantee: {cpus: 2}
    queues:
      vision: {guarantee: {cpus: 1}, weight: 2}
      nlp: {guarantee: {cpus: 1}}
"""
CLUSTER = "pools:\n  - {name: a100, count: 4, cpus: 64, memory: 512G, gpus: A100:8, gpu_memory: 80G}\n"
RUNS = """runs:
  - {submit: 0, duration: 3h, gpus: A100:8, replicas: 3, user: alice, queue: vision}
  - {submit: 1m, duration: 4h, gpus: A100:8, replicas: 4, user: bob, queue: vision}
  - {submit: 2m, duration: 40m, gpus: A100:1, user: carol, queue: vision, count: 40, every: 6m, limit: 1h}
"""
FILES = {"queues.yaml": QUEUES, "cluster.yaml": CLUSTER, "runs.yaml": RUNS}

# A line that begins with `-` is run and not shown. Of one that begins with `~`, stderr is not shown.
SCENES: dict[str, tuple[str, ...]] = {
    "dataset": ("hop dataset push mnist .demo/mnist", "hop dataset push mnist .demo/mnist"),
    "run": ("hop run examples/mnist/main.py -d mnist",),
    "plot": (
        "- hop run examples/mnist/main.py -d mnist -p lr=0.0002 -p epochs=3 --name slow",
        "hop plot slow val_acc --with 1",
    ),
    "diff": ("hop diff 1 slow", "hop dataset board mnist"),
    "fork": ("hop fork slow -p lr=0.001",),
    "gang": ("hop run --replicas 2 examples/ddp/main.py -d mnist",),
    "why": (
        "- hop run --detach --time 20m --name long examples/mnist/main.py -d mnist -p epochs=3000",
        "- hop run --detach --cpus 2 --name next examples/mnist/main.py -d mnist",
        "hop why next",
        "- hop stop long next",
    ),
    "search": ("- hop search examples/search/digits.yaml", "hop search show", "hop search gantt"),
    "queue": (
        "- hop queue apply queues.yaml",
        "- hop run --detach --cpus 2 --queue vision --time 10m --name q examples/mnist/main.py -d mnist",
        "hop queue ls",
        "- hop stop q",
    ),
    "simulate": ("hop simulate runs.yaml --cluster cluster.yaml --limits --policy hopyard --policy fifo",),
    "usage": ("~ hop usage",),
}
PICTURE = ("run", "plot", "why")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "digits"
        for part in ("examples", "scripts"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in FILES.items():
            (folder / name).write_text(text)
        env = {
            **os.environ,
            "HOPYARD_HOME": str(Path(place) / "home"),
            "COLUMNS": str(WIDTH),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        try:
            _run(f"{sys.executable} examples/mnist_dataset.py .demo/mnist", folder, env)
            _run("hop up", folder, env)
            token = _run("hop user add alice --json", folder, env)
            url = json.loads((Path(place) / "home" / "server.json").read_text())["url"]
            as_alice = {**env, "HOPYARD_URL": url, "HOPYARD_TOKEN": json.loads(token)["token"]}
            recorded = {}
            for scene, lines in SCENES.items():
                who = env if scene == "queue" else as_alice  # the owner declares queues
                recorded[scene] = [
                    (line.removeprefix("~ "), _run(line.removeprefix("- "), folder, who)) for line in lines
                ]
        finally:
            _run("hop down --stop-runs", folder, env)
    shown = {
        scene: [(line, output) for line, output in lines if not line.startswith("- ")]
        for scene, lines in recorded.items()
    }
    _write_readme(shown)
    (ROOT / "docs" / "images" / "session.svg").write_text(
        picture([line for scene in PICTURE for line in shown[scene]])
    )


def _run(line: str, folder: Path, env: dict[str, str]) -> str:
    """Returns stderr and stdout of a command in their order, without the ends of lines that only fill."""
    talk = subprocess.DEVNULL if line.startswith("~ ") else subprocess.STDOUT
    result = subprocess.run(
        line.removeprefix("~ "),
        shell=True,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=talk,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(f"$ {line}\n{result.stdout}")
    return "\n".join(part.rstrip() for part in result.stdout.splitlines())


def _write_readme(shown: dict[str, list[tuple[str, str]]]) -> None:
    file = ROOT / "README.md"
    text = file.read_text()
    for scene, lines in shown.items():
        block = "\n".join(f"$ {line}\n{output}" for line, output in lines)
        text = re.sub(
            rf"(<!-- recorded: {scene} -->\n```text\n).*?(\n```)",
            lambda at, block=block: f"{at[1]}{block}{at[2]}",
            text,
            flags=re.S,
        )
    file.write_text(text)


def picture(lines: list[tuple[str, str]]) -> str:
    """Returns an SVG of a terminal that shows the commands and their output, without fonts of other hosts."""
    width = max(WIDTH, *(len(line) + 2 for _, output in lines for line in output.splitlines()))
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for number, (line, output) in enumerate(lines):
        console.print(
            Text(("\n" if number else "") + "$ ", style="bold #57cdbf").append(line, style="bold #ffffff")
        )
        console.print(Text(output), soft_wrap=True)
    svg = console.export_svg(title="hop", theme=THEME, unique_id="hopyard")
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.S)
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S).replace(
        "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    )


if __name__ == "__main__":
    main()
