"""Finds the reason of a failure in the output of a program: the exception, not the last line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hopyard.private_files import open_below

_TAIL_BYTES = 64 * 1024
_MAX_REASON_LENGTH = 200
# after so many later lines an exception was handled by the program
_MAX_LINES_AFTER = 60
_CONTROL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TRACEBACK = re.compile(
    r"(?P<prefix>.{0,64}?)(?:Exception Group )?Traceback \(most recent call last\):?\s*(?P<rule>[─-]+\W*)?"
)
_GROUP_TRACEBACK = re.compile(r"(?P<prefix>[ |]*)[+|] Exception Group Traceback \(most recent call last\):")
_NOTEBOOK_TRACEBACK = re.compile(r"(?P<name>[A-Za-z_][\w.]*)\s+Traceback \(most recent call last\)")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::\s.*|:)?")
_LEAF_EXCEPTION = re.compile(r"^(?!(?:Base)?ExceptionGroup: )[A-Za-z_][\w.]*: \S")
# exceptions that only report that another process failed, which has written its own
_CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_RELAYED_EXCEPTIONS = (
    _CHILD_FAILED,
    "torch.multiprocessing.spawn.ProcessExitedException: ",
    "concurrent.futures.process.BrokenProcessPool: ",
    "RuntimeError: DataLoader worker (pid(s) ",
    "subprocess.CalledProcessError: ",
)
# of a DataLoader, which raises the exception of its worker again
_CAUGHT = re.compile(r"(?P<name>[\w.]+): Caught (?P=name) in (?P<place>.+?)\.?")
_ORIGINAL_TRACEBACK = "Original Traceback (most recent call last):"
_CHILD_HEAD = re.compile(r"Process (?P<process>\S+):")  # of multiprocessing, above a traceback
_ROOT_CAUSE = re.compile(r"\s+traceback : (?P<error>\S.*)")  # in the report of torchrun
_ROOT_CAUSE_RANK = re.compile(r"\s+rank\s+: (?P<rank>\d+) .*")
_IGNORED_TRACEBACKS = ("Exception ignored in", "Exception ignored on", "--- Logging error ---")
_RULE = re.compile(r"[-=*_#~─━]{3,}")  # below the report of mpirun and others
_OWN_MESSAGES = ("hint: ", "hopyard: ")
# the end of Hydra's message about a configuration, which it prints without a traceback
_END_OF_HYDRA = "Set the environment variable HYDRA_FULL_ERROR=1"
_MAX_LINES_OF_HYDRA = 40
_START_OF_HYDRA = re.compile(
    r"(?:Could not |LexerNoViableAltException: |Error (?:merging|parsing) |In '|no viable alternative "
    r"|mismatched input |extraneous input |token recognition error|missing .* at '|Multiple values for "
    r"|Ambiguous |Key ').*"
)
# the error of a program in another language; the last line that matches counts
_OTHER_LANGUAGES = (
    re.compile(r"(?:Exception in thread \"[^\"]*\" |Caused by: )(?P<error>[\w.$]+(?:: .*)?)"),  # Java
    re.compile(r"(?P<error>panic: .*)"),  # Go
    re.compile(r"(?P<error>ERROR: (?:LoadError: )?\S.*)"),  # Julia
    re.compile(r"(?P<error>Error in .* : \S.*)"),  # R
    re.compile(r"(?P<error>Key '.*' is not in struct)"),  # a Hydra application without the setting
    re.compile(r"FATAL (?P<error>Flags parsing error: .*)"),  # absl, followed by its hint
    re.compile(r"(?P<error>thread '.*' (?:\(\d+\) )?panicked at '.*)"),  # Rust before 1.73
)
_RUST_PANIC = re.compile(r"thread '.*' (?:\(\d+\) )?panicked at .*:\d+:\d+:")
# the box around the message of typer and tyro about the command line
_BOX_TOP, _BOX_BOTTOM = re.compile(r"╭.*╮"), re.compile(r"╰─*╯")
_R_ERROR = re.compile(r"Error in .* :")
# an indented frame follows the error: JavaScript, Java, Ruby
_FRAME_AFTER = re.compile(r"^(?:    at |\tat |\tfrom )\S")
_ABORT_REASON = re.compile(
    r"(?P<error>terminate called .*|libc\+\+abi: .*|.*: Assertion `.*' failed\.?|Fatal Python error: .*"
    r"|\s+what\(\):  .*|(?:free|malloc|realloc|calloc|munmap_chunk)\(\): .*|double free or corruption.*"
    r"|corrupted .*|\*\*\* .* detected \*\*\*: .*|F\d{4,8} .*\] .*)"
)


def failure_reason(
    stderr: Path, stdout: Path, *, exit_text: str = "", begins: Mapping[str, int] | None = None
) -> str:
    """Returns the exception that ended a program, shortened: of Python, or of several other languages.

    Without an exception, returns the last line of stderr; "" without output. exit_text: what the program
    passed to `sys.exit`. If stderr has it below every exception, it is the reason. begins: where the output
    of the program begins in the files, by their names.
    """
    begins = begins or {}
    lines = _read_tail(stderr, begins)
    error = (
        _printed_exit_text(lines, exit_text)
        or _find_error(lines)
        or _last_message(lines)
        or _find_error(_read_tail(stdout, begins))
    )
    return _shorten(error)


def _printed_exit_text(lines: Sequence[str], exit_text: str) -> str:
    texts = [line for line in map(_clean, exit_text.split("\n")) if line.strip()]
    positions = [at for at, line in enumerate(lines) if texts and line == texts[-1]]
    error = _last_error(lines)
    if not positions or (error is not None and error[0] > positions[-1]):
        return ""
    return " ".join(text.strip() for text in texts)


def abort_reason(stderr: Path, *, begins: Mapping[str, int] | None = None) -> str:
    """Returns why a program aborted itself: a failed assertion or a C++ exception; "" if it wrote none.

    begins: as in `failure_reason`.
    """
    lines = _read_tail(stderr, begins or {})
    texts = [match["error"].strip() for line in lines if (match := _ABORT_REASON.fullmatch(line))]
    return _shorten(
        ": ".join(texts[-2:]) if texts and texts[-1].startswith("what():") else "".join(texts[-1:])
    )


def _read_tail(file: Path, begins: Mapping[str, int]) -> list[str]:
    """Returns the last lines without control sequences, progress bars in all their states."""
    folder = file.parent  # the script may replace it by a link
    try:
        with os.fdopen(open_below(folder.parent, f"{folder.name}/{file.name}", os.O_RDONLY), "rb") as stream:
            stream.seek(max(begins.get(file.name, 0), stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = stream.read()
    except OSError:
        return []
    text = _CONTROL_SEQUENCE.sub(
        "", tail.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode(errors="replace")
    )
    return [_clean(line) for line in text.split("\n")]


def _clean(line: str) -> str:
    return "".join(c for c in line if c.isprintable() or c == "\t").rstrip()


def _find_error(lines: Sequence[str]) -> str:
    found = _last_error(lines)
    if found is None:
        return ""
    position, error = found
    later = sum(1 for line in lines[position + 1 :] if line.strip())
    return error if later <= _MAX_LINES_AFTER else ""


def _last_error(lines: Sequence[str]) -> tuple[int, str] | None:
    """Returns the last error, and the position of its line."""
    finders: tuple[Callable[[Sequence[str]], tuple[int, str] | None], ...] = (
        _find_exception, _find_foreign_error,
    )  # fmt: skip
    found = [result for find in finders if (result := find(lines)) is not None]
    return max(found, default=None)


def _find_exception(lines: Sequence[str]) -> tuple[int, str] | None:
    """Returns the last exception of Python that ended a program, and the position of its line."""
    relayed = None
    for at in range(len(lines) - 1, -1, -1):
        match = _TRACEBACK.fullmatch(lines[at])
        if match is None or (at and lines[at - 1].lstrip(" |").startswith(_IGNORED_TRACEBACKS)):
            continue
        group = _enclosing_group(lines, at)
        found = _group_exception(lines, *group) if group else _exception_after(lines, at, match)
        if found is None:
            continue
        if found[1].startswith(_CHILD_FAILED) and (root_cause := _root_cause(lines, found[0])):
            return len(lines) - 1, root_cause
        if not found[1].startswith(_RELAYED_EXCEPTIONS):
            found = found[0], _with_child(lines, at, found[1])
            # its position is that of the relayed report: only lines after that count as later output
            return (relayed[0], found[1]) if relayed else found
        relayed = relayed or found
    return relayed


def _root_cause(lines: Sequence[str], at: int) -> str:
    """Returns the first failure in the report of torchrun below line `at`: a signal, or an exception that it
    recorded. Returns "" for any other."""
    rank = ""
    # the replicas that the launcher ended are listed before
    begin = next((i for i in range(at, len(lines)) if lines[i].startswith("Root Cause (")), at)
    for position in range(begin, len(lines)):
        if match := _ROOT_CAUSE_RANK.fullmatch(lines[position]):
            rank = match["rank"]
        match = _ROOT_CAUSE.fullmatch(lines[position])
        if match is None:
            continue
        error = match["error"]
        if error.startswith("Traceback "):
            following = (line[2:] for line in lines[position + 1 :] if line.startswith("  "))
            error = next((line for line in following if line and not line.startswith(" ")), "")
        elif not error.startswith("Signal "):
            continue
        if error:
            return f"rank {rank}: {error}" if rank else error
    return ""


def _with_child(lines: Sequence[str], at: int, error: str) -> str:
    """Returns the exception of the traceback at line `at`, with that of a child process first.

    A child of `multiprocessing` writes its traceback a little before its parent fails. That of a worker of a
    DataLoader is in the message of the parent.
    """
    if caught := _CAUGHT.fullmatch(error):
        original = next((i for i in range(at, len(lines)) if lines[i] == _ORIGINAL_TRACEBACK), None)
        traceback = _TRACEBACK.fullmatch(_ORIGINAL_TRACEBACK.removeprefix("Original "))
        found = original is not None and traceback and _exception_after(lines, original, traceback)
        return f"{found[1]} (in {caught['place']})" if found else error
    if at and _CHILD_HEAD.fullmatch(lines[at - 1]):
        return error
    for position in range(at - 1, max(0, at - _MAX_LINES_AFTER), -1):
        child, traceback = _CHILD_HEAD.fullmatch(lines[position - 1]), _TRACEBACK.fullmatch(lines[position])
        if child and traceback and (found := _exception_after(lines, position, traceback)):
            return f"{found[1]} (in {child['process']}); {error}"
    return error


def _exception_after(lines: Sequence[str], at: int, traceback: re.Match[str]) -> tuple[int, str] | None:
    """Returns the exception below the head of a traceback: the first line that is not indented."""
    notebook = _NOTEBOOK_TRACEBACK.fullmatch(lines[at])
    if notebook is not None:
        return next(
            (
                (position, lines[position])
                for position in range(at + 1, len(lines))
                if lines[position].startswith(notebook["name"] + ": ") or lines[position] == notebook["name"]
            ),
            None,
        )
    position = at + 1
    if traceback["rule"]:  # the box that rich draws
        while position < len(lines) and not lines[position].startswith(("╰", "└", "+-")):
            position += 1
        position += 1
        prefix = ""
    else:
        prefix = traceback["prefix"]
    for index in range(position, len(lines)):
        line = lines[index]
        if not line.startswith(prefix.rstrip()):
            continue  # another process wrote it
        text = line[len(prefix) :]
        if text.strip() and not text.startswith((" ", "\t")):
            return (index, text) if _EXCEPTION.fullmatch(text) else None
    return None


def _enclosing_group(lines: Sequence[str], at: int) -> tuple[int, str] | None:
    """Returns the position and prefix of the exception group that contains the traceback at `at`."""
    if "|" not in lines[at] and not _GROUP_TRACEBACK.fullmatch(lines[at]):
        return None
    for position in range(at, -1, -1):
        match = _GROUP_TRACEBACK.fullmatch(lines[position])
        if match is not None and not match["prefix"].strip():
            return position, match["prefix"] + "| "
        if not lines[position].strip(" |"):
            continue
        if not lines[position].lstrip().startswith(("|", "+")):
            return None
    return None


def _group_exception(lines: Sequence[str], at: int, prefix: str) -> tuple[int, str] | None:
    """Returns the message of an exception group with the first exception in it."""
    group, error, end = "", "", at
    for position in range(at + 1, len(lines)):
        line = lines[position]
        if not line.lstrip().startswith(("|", "+")):
            break
        end = position
        text = line[len(prefix) :] if line.startswith(prefix) else ""
        inner = line.lstrip(" |")
        depth = line[: len(line) - len(inner)]
        if not group and text and not text.startswith(" ") and _EXCEPTION.fullmatch(text):
            group = text
        elif group and not error and depth.endswith("| ") and _LEAF_EXCEPTION.search(inner):
            error = inner
    if not group:
        return None
    return end, f"{group}: {error}" if error else group


def _find_foreign_error(lines: Sequence[str]) -> tuple[int, str] | None:
    """Returns the error of a program that is not written in Python."""
    for at in range(len(lines) - 1, -1, -1):
        line, following = lines[at], lines[at + 1 : at + 2]
        if _RUST_PANIC.fullmatch(line) and following and following[0]:
            return at, f"panicked: {following[0]}"
        if _R_ERROR.fullmatch(line) and following and following[0].strip():
            return at, f"{line} {following[0].strip()}"
        if following and _FRAME_AFTER.search(following[0]) and line and not line.startswith((" ", "\t")):
            java = _OTHER_LANGUAGES[0].fullmatch(line)
            return at, java["error"] if java else line
        for pattern in _OTHER_LANGUAGES[1:]:
            if match := pattern.fullmatch(line):
                return at, match["error"]
    return None


def _last_message(lines: Sequence[str]) -> str:
    """Returns the last line with content, except rules, the hints of Hopyard's errors and the warnings of its
    tracking."""
    texts = [
        text
        for line in lines
        if (text := line.strip()) and not text.startswith(_OWN_MESSAGES) and not _RULE.fullmatch(text)
    ]
    if texts and _BOX_BOTTOM.fullmatch(texts[-1]):
        return _text_in_box(texts) or texts[-1]
    if not texts or not texts[-1].startswith(_END_OF_HYDRA):
        return texts[-1] if texts else ""
    message = texts[-_MAX_LINES_OF_HYDRA:-1]
    return next(filter(_START_OF_HYDRA.fullmatch, message), (message or texts)[-1])


def _text_in_box(texts: Sequence[str]) -> str:
    """Returns the text in the box at the end, up to the first rule or empty line in it."""
    words: list[str] = []
    top = max((at for at, text in enumerate(texts) if _BOX_TOP.fullmatch(text)), default=len(texts))
    for line in texts[top + 1 : -1]:
        text = line.strip("│ ")
        if not text.strip("─"):
            break
        words.append(text)
    return " ".join(words)


def _shorten(text: str) -> str:
    text = text.replace("\t", " ").strip()
    return text if len(text) <= _MAX_REASON_LENGTH else text[: _MAX_REASON_LENGTH - 1] + "…"
