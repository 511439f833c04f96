"""Media of the real library become media of the run, with their captions."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image as PilImage

from tests.sdk.scripts import Replica

SCRIPT = """
import os
os.environ |= {"WANDB_API_KEY": "", "HOME": os.getcwd()}
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_X_SERVICE_WAIT": "150"}
import numpy as np, wandb
import hopyard as hop
from hopyard.sdk.startup.wandb_media import convert_media, copy_nested
with wandb.init(project="p", dir=".", settings=wandb.Settings(console="off")) as run:
    pixels = np.arange(45, dtype=np.uint8).reshape(3, 5, 3) * 5
    values = {
        "image": wandb.Image(pixels, caption="c"),
        "panel": [wandb.Image(pixels), wandb.Image(pixels)],
        "nested": {"table": wandb.Table(columns=["a", "b"], data=[[1, "x"]])},
        "weights": wandb.Histogram(np_histogram=([1, 3], [0, 1, 2])),
        "page": wandb.Html("<b>x</b>", inject=False),
        "loss": 0.5,
    }
    copied = copy_nested(values)
    run.log(values, step=3)
    converted = convert_media(copied)
    hop.log({name: value for name, value in converted.items() if name != "nested"}, step=3)
    hop.log(converted["nested"], step=3)
"""


def test_media_of_wandb_are_recorded(replica: Replica) -> None:
    pytest.importorskip("wandb")
    replica.run(SCRIPT)
    streams = replica.folder / "streams"
    data = (streams / "media_data").read_bytes()
    found: dict[str, list[tuple[str, str, int, bytes]]] = {}
    for line in (streams / "media").read_text().splitlines():
        record = json.loads(line)
        content = data[record["offset"] : record["offset"] + record["size"]]
        found.setdefault(record["name"], []).append(
            (record["kind"], record.get("caption", ""), record["step"], content)
        )
    ((kind, caption, step, content),) = found["image"]
    assert (kind, caption, step) == ("image", "c", 3)
    expected = np.arange(45, dtype=np.uint8).reshape(3, 5, 3) * 5
    assert np.asarray(PilImage.open(io.BytesIO(content))).tolist() == expected.tolist()
    assert [item[0] for item in found["panel"]] == ["image", "image"]
    assert json.loads(found["table"][0][3])["rows"] == [[1, "x"]]
    assert json.loads(found["weights"][0][3])["counts"] == [1, 3]
    assert found["page"][0][3] == b"<b>x</b>"
    assert [(name, point.value) for name, point in replica.points] == [("loss", 0.5)]
