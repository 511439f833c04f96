"""`hop examples`: the example scripts, which are part of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click

from hopyard.cli.terminal import console
from hopyard.config.suggest import unknown_name_hints
from hopyard.errors import SpecError

_PACKAGE = Path(__file__).resolve().parent.parent
# inside of an installed package, or of a checkout
_FOLDERS = (_PACKAGE / "examples", _PACKAGE.parent.parent / "examples")
_FIRST_FILES = ("main.py", "train.py", "digits.py", "plain.py")
_SUMMARIES = {  # of folders with several scripts
    "launchers": "Gangs that torchrun, mpirun, JAX, TensorFlow and plain sockets start",
    "tutorial": "the scripts of the tutorial",
}
_SENTENCE = re.compile(r"[:.]\s")


@click.group("examples", no_args_is_help=True)
def examples() -> None:
    """List and copy the example scripts, and those of the tutorial."""


@examples.command("ls")
def ls() -> None:
    """List the examples."""
    folder = _examples_folder()
    rows = [[path.name, _summary(path)] for path in _entries(folder)]
    console.print_lines(console.format_table(["EXAMPLE", "CONTENT"], rows))


@examples.command("copy")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--to", "target", type=click.Path(path_type=Path), help="Folder for the files.  [default: examples]"
)
@click.option("--force", is_flag=True, help="Replace files that differ.")
def copy(names: tuple[str, ...], target: Path | None, *, force: bool) -> None:
    """Copy examples, by default all, into ./examples. With --to, the files of one example are copied into
    that folder itself. Files that exist and differ are replaced only with --force.
    """
    folder = _examples_folder()
    known = {path.name: path for path in _entries(folder)}
    for name in names:
        if name not in known:
            raise SpecError(
                f"there is no example `{name}`",
                hints=unknown_name_hints(name, list(known), subject="examples"),
            )
    chosen = [known[name] for name in names] or list(known.values())
    top = target or Path("examples")
    is_inside = target is not None and len(names) == 1
    files = {
        top / file.relative_to(path if is_inside and path.is_dir() else folder): file
        for path in chosen
        for file in _files(path)
    }
    changed = [place for place, file in files.items() if _differs(place, file)]
    if changed and not force:
        raise SpecError(
            f"{changed[0]} exists and is different", hints=("use --force to replace it, or --to FOLDER",)
        )
    for place, file in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
        console.print_line(str(place))


def _examples_folder() -> Path:
    for folder in _FOLDERS:
        if folder.is_dir():
            return folder
    raise SpecError("this installation has no examples", hints=("install the wheel of Hopyard again",))


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _differs(place: Path, file: Path) -> bool:
    return place.is_dir() or (place.exists() and place.read_bytes() != file.read_bytes())


def _summary(path: Path) -> str:
    """Returns the first sentence of an example: of its script, or of the comment of a file."""
    if path.name in _SUMMARIES:
        return _SUMMARIES[path.name]
    files = (
        [path] if path.is_file() else [*(path / name for name in _FIRST_FILES), *sorted(path.glob("*.py"))]
    )
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return ""
    if file.suffix == ".py":
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    else:
        text = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return _SENTENCE.split(" ".join(text.split()))[0].rstrip(".")
