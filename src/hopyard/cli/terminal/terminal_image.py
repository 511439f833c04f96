"""Shows images in a terminal: by the protocols of kitty and iTerm2, or as coloured half blocks."""

from __future__ import annotations

import io
import os
import sys
from base64 import b64encode
from collections.abc import Mapping

from hopyard.cli.terminal.block_image import draw_picture
from hopyard.cli.terminal.console import supports_cursor, supports_unicode
from hopyard.cli.terminal.png_decoder import MAX_PIXELS, Bitmap, decode_png

_PART_CHARACTERS = 4096
_MAX_HEIGHT = 40


def inline_sequence(data: bytes, type_: str, environ: Mapping[str, str]) -> str:
    """Returns the sequence that shows an image in a terminal with a protocol for images; "" without one."""
    if environ.get("TMUX") or environ.get("STY"):
        return ""  # a multiplexer would print the sequence
    program, encoded = environ.get("TERM_PROGRAM", ""), b64encode(data).decode("ascii")
    if type_ == "image/png" and (
        "KITTY_WINDOW_ID" in environ or "kitty" in environ.get("TERM", "") or program == "ghostty"
    ):
        parts = [encoded[at : at + _PART_CHARACTERS] for at in range(0, len(encoded), _PART_CHARACTERS)]
        head = "f=100,a=T,"
        return "".join(
            f"\x1b_G{head if number == 0 else ''}m={int(number + 1 < len(parts))};{part}\x1b\\"
            for number, part in enumerate(parts)
        )
    if program in ("iTerm.app", "WezTerm") or environ.get("LC_TERMINAL") == "iTerm2":
        return f"\x1b]1337;File=inline=1;size={len(data)}:{encoded}\x07"
    return ""


def print_image(data: bytes, type_: str, *, width: int) -> bool:
    """Prints an image on stdout, a terminal. Returns False if this program cannot decode it."""
    sequence = inline_sequence(data, type_, os.environ) if supports_cursor(sys.stdout) else ""
    if sequence:
        sys.stdout.write(f"{sequence}\n")
        return True
    picture = decode_png(data) or _decode_with_pillow(data)
    if picture is None:
        return False
    colour = supports_cursor(sys.stdout) and supports_unicode(sys.stdout) and not os.environ.get("NO_COLOR")
    for line in draw_picture(picture, width=width, height=_MAX_HEIGHT, colour=colour):
        sys.stdout.write(f"{line}\n")
    return True


def _decode_with_pillow(data: bytes) -> Bitmap | None:
    """Returns the picture of another format, if Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        image = Image.open(io.BytesIO(data))
        if image.width * image.height > MAX_PIXELS:
            return None
        rgb = image.convert("RGB")
        return Bitmap(rgb.width, rgb.height, rgb.tobytes())
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
