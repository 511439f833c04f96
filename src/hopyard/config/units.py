"""Amounts in text form: `8G`, `0.5`, `2h30m`, `A100:8`. Each has a parser, a writer, and one error text. The
text of every writer is parsed as exactly the same amount."""

from __future__ import annotations

import re

from hopyard.config.limits import MAX_CPU_MILLI, MAX_MEMORY_BYTES, MAX_SECONDS
from hopyard.errors import SpecError

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_MEMORY = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", re.ASCII)
_MEMORY_UNITS = {
    "b": 1,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "ki": KIB,
    "mi": MIB,
    "gi": GIB,
    "ti": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_MEMORY_HINT = "memory is a number with a unit: 8G, 512M, 1.5GiB (powers of 1024) or 8GB (powers of 1000)"
# no GPU is called so: what arithmetic writes where there is no number, and flags of a file
NON_MODEL_WORDS = ("nan", "inf", "infinity", "true", "false")
_CPUS = re.compile(r"(\d{1,9})(?:\.(\d{1,3}))?", re.ASCII)
_DECIMAL_PATTERN = re.compile(r"\d+(?:\.\d{1,3})?", re.ASCII)
_CPUS_HINT = "CPUs are a number above 0 with at most three decimals: 4, 0.5"
_TIME = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)s)?", re.ASCII
)
_TIME_HINT = "a time is written 2h, 90m, 2h30m, 1d12h or in seconds: 3600"
_GPUS_HINT = "GPUs are a number or MODEL:NUMBER: 1, A100:8"
GPU_MODEL = re.compile(r"[A-Za-z][A-Za-z0-9 ._-]{0,63}")


def parse_memory(text: str, *, what: str = "memory") -> int:
    """Returns bytes. `0` requests none and sets no limit. Raises SpecError."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None or (match[2] and match[2].lower() not in _MEMORY_UNITS):
        raise SpecError(f"{what}: `{text}` is not an amount of memory", hints=(_MEMORY_HINT,))
    number, unit = match[1], match[2].lower()
    amount = _scale(number, _MEMORY_UNITS[unit or "b"])
    if not unit and 0 < amount < MIB:
        raise SpecError(
            f"{what}: `{text}` has no unit", hints=(f"did you mean `{text.strip()}G`?", _MEMORY_HINT)
        )
    if amount > MAX_MEMORY_BYTES:
        raise SpecError(f"{what}: `{text}` is more than any node has", hints=(_MEMORY_HINT,))
    return amount


def parse_positive_memory(text: str, *, what: str = "memory") -> int:
    """Parses an amount above 0, as `parse_memory` does: no memory is requested by leaving the amount out.
    Raises SpecError."""
    amount = parse_memory(text, what=what)
    if not amount:
        raise SpecError(
            f"{what}: `{text}` is not an amount of memory above 0",
            hints=("leave it out to request none", _MEMORY_HINT),
        )
    return amount


def _scale(number: str, unit: int) -> int:
    """Returns `number` times `unit`, rounded down, without the errors of binary fractions."""
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * unit // scale


def format_memory(amount: int) -> str:
    """Returns the shortest exact text: `8G`, `1536M`, `1000001B`; `0` for none."""
    for unit, size in (("T", TIB), ("G", GIB), ("M", MIB), ("K", KIB)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return f"{amount}B" if amount else "0"


def parse_cpus(text: str, *, what: str = "cpus") -> int:
    """Returns thousandths of a core. Raises SpecError."""
    match = _CPUS.fullmatch(text.strip())
    milli = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0")) if match else 0
    if milli > MAX_CPU_MILLI or (match is None and _DECIMAL_PATTERN.fullmatch(text.strip())):
        raise SpecError(
            f"{what}: `{text}` is too large: no machine has more than {MAX_CPU_MILLI // 1000} CPUs",
            hints=(_CPUS_HINT,),
        )
    if not milli:
        raise SpecError(f"{what}: `{text}` is not a number of CPUs", hints=(_CPUS_HINT,))
    return milli


def format_cpus(milli: int) -> str:
    whole, rest = divmod(milli, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def parse_time(text: str, *, what: str = "time") -> float:
    """Returns seconds, above 0. Raises SpecError."""
    stripped = text.strip().lower().replace(" ", "")
    seconds = 0.0
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", stripped, re.ASCII):
        seconds = float(stripped)
    elif stripped and (match := _TIME.fullmatch(stripped)):
        days, hours, minutes, rest = match.groups()
        seconds = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(rest or 0)
    else:
        raise SpecError(f"{what}: `{text}` is not a time", hints=(_TIME_HINT,))
    if not seconds:
        raise SpecError(f"{what}: `{text}` is not more than 0 seconds", hints=(_TIME_HINT,))
    if seconds > MAX_SECONDS:
        raise SpecError(f"{what}: `{text}` is more than ten years", hints=(_TIME_HINT,))
    return seconds


def format_time(seconds: float) -> str:
    """Returns the exact text: `2h30m`, `1d`, `0.25s`."""
    whole = int(seconds)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    rest = whole + (seconds - int(seconds))
    if rest or not parts:
        text = f"{rest:.6f}".rstrip("0").rstrip(".")
        parts.append(f"{text}s")
    return "".join(parts)


def is_gpu_model(name: str) -> bool:
    return GPU_MODEL.fullmatch(name) is not None and name.lower() not in NON_MODEL_WORDS


def parse_gpus(text: str, *, what: str = "gpus") -> tuple[str | None, int]:
    """Returns the model (None: any) and the number. Raises SpecError."""
    stripped = text.strip()
    model, colon, number = stripped.rpartition(":")
    if not colon:
        model, number = (
            (stripped, "1")
            if stripped[:1].isalpha() and stripped.lower() not in NON_MODEL_WORDS
            else ("", stripped)
        )
    if not re.fullmatch(r"\d{1,6}", number, re.ASCII) or (colon and not model):
        raise SpecError(f"{what}: `{text}` is not a number of GPUs", hints=(_GPUS_HINT,))
    if model and not is_gpu_model(model):
        raise SpecError(f"{what}: `{model}` is not the name of a GPU model", hints=(_GPUS_HINT,))
    if model and int(number) == 0:
        raise SpecError(f"{what}: `{text}` requests no GPU of a model", hints=(_GPUS_HINT,))
    return model or None, int(number)


def format_gpus(model: str | None, number: int) -> str:
    return f"{model}:{number}" if model else str(number)


def format_bytes(count: int) -> str:
    """Returns a rounded text: 1.2 GiB, 512 MiB, 40 KiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return (
                f"{count} B"
                if unit == "B"
                else f"{value:.1f} {unit}"
                if value < 100
                else f"{value:.0f} {unit}"
            )
        value /= 1024
    raise AssertionError
