"""`hop media` and `hop pull --media`, with runs of the real server."""

from __future__ import annotations

import json
import subprocess
import sys

from hopyard.api_client.client import Client
from hopyard.cli.terminal.block_image import draw_bars, draw_picture
from hopyard.cli.terminal.png_decoder import Bitmap, decode_png
from hopyard.cli.terminal.terminal_image import inline_sequence
from tests.cli.shell import Shell

SCRIPT = """
import hopyard as hop
kept = hop.bind(n=[0])
for epoch in hop.loop(range(3)):
    kept.n[0] += 1
    large = hop.Image([[0, 255], [255, epoch]], caption=f"e{epoch}")
    hop.log({"val/x": [large, hop.Image([[epoch]])]}, step=epoch)
    hop.log(note=hop.Text(f"epoch {epoch}\\n"), loss=1.0, step=epoch)
"""


def test_media_of_a_run_are_listed_shown_and_fetched(shell: Shell, client: Client) -> None:
    shell.write("train.py", SCRIPT)
    run = shell.hop("run", "--json", "train.py").json
    head, *rows = shell.hop("media", run["name"]).text.splitlines()
    assert head.split() == ["KIND", "STEPS", "ITEMS", "SIZE", "NAME"]
    assert [[row.split()[0], row.split()[5], row.split()[-1]] for row in rows] == [
        ["text", "3", "note"],
        ["image", "6", "val/x"],
    ]
    items = shell.hop("media", run["name"], "val/x", "--step", "1", "--json").json
    assert [(item["step"], item["index"], item["caption"]) for item in items] == [(1, 0, "e1"), (1, 1, "")]
    assert shell.hop("media", run["name"], "note", "--step", "1", "-o", "-").text == "epoch 1\n"
    fetched = shell.hop("media", run["name"], "val/x", "--step", "2", "--index", "0", "-o", "x.png")
    assert (fetched.code, fetched.text) == (0, "x.png\n")
    picture = decode_png((shell.folder / "x.png").read_bytes())
    assert picture is not None and picture.data[::3] == bytes([0, 255, 255, 2])
    again = shell.hop("media", run["name"], "val/x", "--step", "2", "--index", "0", "-o", "x.png")
    assert (again.code, "--force" in again.stderr_text) == (2, True)
    one = shell.hop("media", run["name"], "val/*", "--step", "2", "--index", "0", "-o", "some")
    assert one.code == 0, one.stderr_text
    assert [path.name for path in (shell.folder / "some").rglob("*.png")] == ["2.png"]
    shell.hop("pull", run["name"], "all", "--media")
    pulled = sorted(
        str(path.relative_to(shell.folder / "all")) for path in (shell.folder / "all/media").rglob("*.*")
    )
    assert pulled == [
        "media/media.json",
        *(f"media/note/{step}.txt" for step in range(3)),
        *(f"media/val%2Fx/{step}-{index}.png" for step in range(3) for index in range(2)),
    ]
    listed = json.loads((shell.folder / "all/media/media.json").read_text())
    assert {(item["path"], item["caption"]) for item in listed} >= {("val%2Fx/1-0.png", "e1")}
    for words, hint in (
        (("media", run["name"], "vall/x"), "did you mean `val/x`?"),
        (("media", run["name"], "note", "--step", "9"), "the steps are 0, 1, 2"),
        (("media", run["name"], "-o", "-"), "select one with --step"),
    ):
        refused = shell.hop(*words)
        assert (refused.code, hint in refused.stderr_text) == (2, True), refused.stderr_text
    item = items[0]["id"]
    with client.open("GET", f"/runs/{run['id']}/media/{item}") as response:
        assert response.headers["Content-Type"] == "image/png"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert len(response.read(1000)) == items[0]["size_bytes"]


def test_offline_recording_is_sent_with_its_media(shell: Shell) -> None:
    shell.write("train.py", SCRIPT)
    command = [sys.executable, "train.py"]
    subprocess.run(command, cwd=shell.folder, env=shell.environment, check=True, timeout=120)
    (sent,) = shell.hop("sync", "--json").json
    assert shell.hop("media", sent["run"], "note", "--step", "2", "-o", "-").text == "epoch 2\n"


def test_pictures_and_histograms_are_drawn_with_characters() -> None:
    picture = Bitmap(2, 2, bytes([255] * 3 + [0] * 3 + [255] * 3 + [0] * 3))
    assert draw_picture(picture, width=4, height=1, colour=False) == ["@"]
    rows = draw_picture(picture, width=2, height=1, colour=True)
    assert rows == ["\x1b[38;2;255;255;255;48;2;255;255;255m▀\x1b[38;2;0;0;0;48;2;0;0;0m▀\x1b[0m"]
    assert draw_bars([0, 1, 2], [1, 4], 0, 4, columns=4, unicode=False) == ".@  ".replace(".", ":")
    assert draw_bars([0, 0], [3], 0, 2, columns=2, unicode=True) == "█ "
    inf = float("inf")
    assert draw_bars([-inf, 0, 1, inf], [9, 4, inf], 0, 1, columns=2, unicode=True) == "██"
    assert draw_bars([-1e308, 1e308], [1], -1e308, 1e308, columns=2, unicode=True) == "██"


def test_terminals_with_a_protocol_for_images_get_the_image() -> None:
    data = bytes(range(256)) * 20
    kitty = inline_sequence(data, "image/png", {"TERM": "xterm-kitty"})
    assert (
        kitty.startswith("\x1b_Gf=100,a=T,m=1;") and kitty.count("\x1b_G") == 2 and kitty.endswith("\x1b\\")
    )
    assert inline_sequence(data, "image/jpeg", {"TERM_PROGRAM": "iTerm.app"}).startswith(
        "\x1b]1337;File=inline=1"
    )
    assert inline_sequence(data, "image/png", {"TERM": "xterm"}) == ""
    assert inline_sequence(data, "image/png", {"TERM": "xterm-kitty", "TMUX": "1"}) == ""
