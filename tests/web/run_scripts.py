"""Scripts of the runs that the tests of the page of a run look at."""

LIVE = """
import time
import hopyard as hop

p = hop.params(lr=0.1, steps=100000)
for step in hop.loop(range(p.steps)):
    hop.log(loss=p.lr / (step + 1), step=step)
    print(f"step {step} with lr {p.lr}", flush=True)
    time.sleep(0.05)
"""

# each piece would set `ran` in the page if it were ever treated as a page or script
HOSTILE = r"""
import struct, sys, zlib
from pathlib import Path
import hopyard as hop

ATTACK = "<img src=x onerror=window.ran=1><script>window.ran=1</script>"
Path("page.html").write_text(ATTACK)
Path("picture.svg").write_text(
    "<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran=1'><script>window.ran=1</script></svg>")
Path("table.csv").write_text(f"name,value\n{ATTACK},1\n\"a \"\"quoted\"\" cell\",2\n")
Path(f"{ATTACK.replace('/', '')}.txt").write_text("odd name")
part = lambda kind, data: (struct.pack(">I", len(data)) + kind + data
                           + struct.pack(">I", zlib.crc32(kind + data)))
png = (b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
       + part(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(range(0, 256, 32)) for _ in range(8))))
       + part(b"IEND", b""))
Path("dot.png").write_bytes(png)
p = hop.params(lr=0.1)
for step in range(3):
    hop.log({ATTACK: step, "loss": 1 / (step + 1)}, step=step)
    hop.log(sample=hop.Image(png, caption=ATTACK), note=hop.Text(ATTACK), step=step)
    hop.log(weights=hop.Histogram([0.1 * step, 1, 1, 2, 3]), step=step)
    hop.log(errors=hop.Table([[ATTACK, step]], columns=["file", "guess"]), step=step)
print(ATTACK)
print("\x1b[1;31mred alert\x1b[0m \x1b]8;;javascript:window.ran=1\x07a link\x1b]8;;\x07")
print("10%\r50%\r100% done")
print("x" * 1_000_000)
for number in range(20000):
    print(f"line {number}")
raise ValueError(ATTACK)
"""

# logs pictures, a table and a text at three steps; `shade.py` beside it has SHADE
SHADES = r"""
import struct, zlib
from pathlib import Path
import hopyard as hop
from shade import SHADE

def png(shade):
    part = lambda kind, data: (struct.pack(">I", len(data)) + kind + data
                               + struct.pack(">I", zlib.crc32(kind + data)))
    rows = b"".join(b"\0" + bytes([shade] * 16) for _ in range(16))
    return (b"\x89PNG\r\n\x1a\n" + part(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 0, 0, 0, 0))
            + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b""))

for step in range(3):
    hop.log(loss=SHADE / (step + 1), epoch=step, step=step)
    hop.log(picture=hop.Image(png(SHADE + step), caption=f"shade {SHADE + step}"), step=step)
    hop.log(note=hop.Text("the same in all runs"), step=step)
    rows = [[f"row {n}", n * SHADE] for n in range(30)]
    hop.log(errors=hop.Table(rows, columns=["file", "score"]), step=step)
Path("scores.csv").write_text("name,score\n" + "".join(f"run {n},{n}\n" for n in range(1500)))
"""
