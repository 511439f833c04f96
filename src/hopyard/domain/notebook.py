"""The code of a Jupyter notebook, and the variables of it that a parameter of a run sets.

Parameters are set as papermill does: after the cell tagged `parameters`, else before the first cell.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hopyard.backports import dataclass, zip
from hopyard.errors import SpecError

NOTEBOOK_SUFFIX = ".ipynb"
EXECUTED_SUFFIX = ".executed.ipynb"
# runs a notebook; it is started with `python -u -m`
NOTEBOOK_MODULE = "hopyard.sdk.notebook"
_TAG, _INJECTED_TAG = "parameters", "injected-parameters"
_PYTHON = ("python", "ipython", "python3", "")
_LINE_MAGIC = re.compile(r"(\s*)[%!?].*|(\s*)[\w., ]+=\s*[%!].*|[^#]*\?\s*", re.ASCII)
_EXPANDED = re.compile(r"\{([A-Za-z_]\w*)|\$([A-Za-z_]\w*)", re.ASCII)
_CODE_MAGIC = re.compile(r"\s*%%(?:time|timeit|capture|prun)\b.*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Notebook:
    """language: in lower case, "" if it is unknown. cells: the code cells. parameters_cell: the position in
    `cells` of the cell tagged `parameters`, None without one."""

    language: str
    cells: tuple[str, ...]
    parameters_cell: int | None = None

    @property
    def is_python(self) -> bool:
        return self.language in _PYTHON

    def source(self) -> str:
        """Returns the cells as one Python program: magics are left out, and so are cells that are no
        Python."""
        return "\n".join(text for text in map(_plain_code, self.cells) if _parse(text) is not None)

    def declared(self) -> dict[str, object]:
        """Returns the variables of the parameters cell with their values, `...` for those that are no
        constants."""
        if self.parameters_cell is None or not self.is_python:
            return {}
        tree = _parse(_plain_code(self.cells[self.parameters_cell]))
        return {} if tree is None else dict(_assignments(tree))

    def takes(self, name: str) -> bool:
        """Returns whether a value of this variable has an effect: the parameters cell declares it, or a
        later cell reads it before it is set again. Unknown for other languages, hence true."""
        if not self.is_python or name in self.declared():
            return True
        start = 0 if self.parameters_cell is None else self.parameters_cell + 1
        for text in self.cells[start:]:
            tree = _parse(_plain_code(text))
            for statement in () if tree is None else tree.body:
                uses = {type(n.ctx) for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name}
                if ast.Load in uses or (isinstance(statement, ast.AugAssign) and uses):
                    return True
                if uses:
                    return False
        return False


def read_notebook(text: bytes, path: str) -> Notebook:
    """Reads the JSON of a notebook, of any version of its format. Raises SpecError."""
    try:
        content = json.loads(text)
        sheets = content.get("worksheets") or [content]  # format 3 has one sheet
        cells = [cell for cell in sheets[0]["cells"] if cell["cell_type"] == "code"]
        sources = tuple(_text(cell["source"] if "source" in cell else cell["input"]) for cell in cells)
        tagged = [index for index, cell in enumerate(cells) if _TAG in _tags(cell)]
        metadata = content.get("metadata", {})
        language = metadata.get("kernelspec", {}).get("language")
        language = language or metadata.get("language_info", {}).get("name") or ""
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise SpecError(
            f"{path} is not a notebook: {error if isinstance(error, ValueError) else 'it has no cells'}",
            hints=("save it in Jupyter again",),
        ) from error
    return Notebook(str(language).lower(), sources, tagged[0] if tagged else None)


def executed_path(path: str) -> str:
    """Returns the path of the executed notebook: `train.executed.ipynb` for `train.ipynb`."""
    return path.removesuffix(NOTEBOOK_SUFFIX) + EXECUTED_SUFFIX


def notebook_of(command: Sequence[str]) -> str:
    """Returns the notebook that a command runs, "" for other commands."""
    if NOTEBOOK_MODULE not in command:
        return ""
    at = list(command).index(NOTEBOOK_MODULE) + 1
    return command[at] if at < len(command) else ""


def _text(source: object) -> str:
    return "".join(source) if isinstance(source, list) else str(source)


def _tags(cell: Mapping[str, Any]) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", ()))


def _plain_code(text: str) -> str:
    """Returns the cell without magics; each line keeps its number."""
    if _parse(text) is not None:
        return text  # a line of it may look like one: `% size` in an expression, `# good?`
    lines = text.splitlines()
    if lines and lines[0].lstrip().startswith("%%"):
        if not _CODE_MAGIC.fullmatch(lines[0]):
            return ""
        lines[0] = ""
    plain = []
    for line in lines:
        magic = _LINE_MAGIC.fullmatch(line)
        if magic is None:
            plain.append(line)
            continue
        names = [braced or dollar for braced, dollar in _EXPANDED.findall(line)]
        # `!python train.py --lr {lr}` reads a variable
        plain.append(f"{magic[1] or magic[2] or ''}{', '.join(names) or 'pass'}")
    return "\n".join(plain)


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _assignments(tree: ast.Module) -> Iterator[tuple[str, object]]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or value is None:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, _constant(value)
            elif isinstance(target, ast.Tuple):
                values = value.elts if isinstance(value, ast.Tuple) else [None] * len(target.elts)
                for each, part in zip(target.elts, values, strict=False):
                    if isinstance(each, ast.Name):
                        yield each.id, ... if part is None else _constant(part)


def _constant(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...
