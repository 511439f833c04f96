"""The query language of listings: `val_acc > 0.9 and params.lr < 1e-3`.

A query compares a name with a value (`=`, `!=`, `<`, `<=`, `>`, `>=`), finds a part of a text (`~`), or tests
membership (`in (a, b)`). A name alone means that the run has it. Comparisons combine with `and`, `or`, `not`
and parentheses. A comparison with a name that the run does not have is false, except `NAME = null`.

Names: a field of the run (`phase`, `user`, `took`), `params.lr`, `metrics.loss`, `summary.loss`, `tags.team`.
A name without a prefix is a field, else a metric, else a parameter, else a tag. Backquotes hold odd names.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hopyard.domain.gang import DEFAULT_PRIORITY
from hopyard.domain.ids import DEFAULT_QUEUE, RunName
from hopyard.domain.run import Run, RunPhase
from hopyard.domain.suggest import closest_name
from hopyard.errors import SpecError

QueryValue = str | int | float | bool | None

TIME_FIELDS = ("submitted", "started", "ended")  # seconds since 1970
DURATION_FIELDS = ("age", "took")  # seconds
FIELDS = (
    *("name", "id", "user", "project", "number", "label", "phase", "queue", "priority", "dataset", "script"),
    *("reason", "position", "note", "archived", *DURATION_FIELDS, *TIME_FIELDS),
)
PREFIXES = ("params", "metrics", "summary", "tags")
_ALIASES = {
    "state": "phase",
    "status": "phase",
    "time": "took",
    "duration": "took",
    "runtime": "took",
    "submitted_at": "submitted",
    "started_at": "started",
    "ended_at": "ended",
    "created": "submitted",
}
MAX_QUERY_LENGTH = 2000
_MAX_DEPTH = 50
_FIELD_SET = frozenset(FIELDS)
_Finder = Callable[["RunValues"], tuple[bool, "QueryValue"]]

_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')|(?P<quoted>(?:[A-Za-z]+\.)?`[^`]*`)"
    r"|(?P<operator><=|>=|!=|==|=~|<>|[=<>~(),])|(?P<word>[^\s<>=!~(),\"'`]+))"
)
_NUMBER = re.compile(
    r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|infinity)|nan", re.IGNORECASE | re.ASCII
)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])", re.ASCII)
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WORDS: dict[str, QueryValue] = {"true": True, "false": False, "null": None, "none": None}
_COMPARISONS = ("=", "!=", "<", "<=", ">", ">=", "~")
_SYNONYMS = {"==": "=", "<>": "!=", "=~": "~"}
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXAMPLE = "for example: val_acc > 0.9 and params.lr < 1e-3"


class QueryError(SpecError):
    """A query that cannot be read. position, length: of the mistake, in characters; the position is None if
    it is the whole query."""

    def __init__(
        self, message: str, *, hints: Sequence[str] = (), position: int | None = None, length: int = 0
    ) -> None:
        super().__init__(message, hints=hints)
        self.position, self.length = position, length


@dataclass(frozen=True, slots=True)
class RunValues:
    """What a query may look at of one run. fields: by the names FIELDS; `dataset` holds all names, separated
    by spaces. metrics: the latest values."""

    fields: Mapping[str, QueryValue]
    params: Mapping[str, QueryValue]
    metrics: Mapping[str, float | None]
    summary: Mapping[str, float | None]
    tags: Mapping[str, str]

    def find(self, name: str) -> tuple[bool, QueryValue]:
        """Returns whether the run has the name, and its value. `metrics.NAME` and a bare name prefer the
        summary to the latest value, as leaderboards do."""
        return _finder(name)(self)

    def names(self) -> Iterator[str]:
        """Yields the names that this run has, beside its fields."""
        yield from self.summary
        yield from self.metrics
        yield from (f"params.{name}" for name in self.params)
        yield from (f"tags.{name}" for name in self.tags)


def run_fields(
    *,
    run_id: str,
    name: RunName,
    label: str,
    phase: str,
    queue: str,
    priority: int,
    datasets: Sequence[str],
    script: str,
    reason: str,
    position: int | None,
    note: str,
    archived: bool,
    submitted_at: datetime,
    started_at: datetime | None,
    ended_at: datetime | None,
    served_s: float,
    now: datetime | None,
) -> dict[str, QueryValue]:
    """Returns the fields of a run for a query at the time `now`. An empty text counts as no value. With
    None as `now`, `age` has no value, nor has `took` of a running run."""
    took: float | None = None
    if started_at is not None:
        until = ended_at or now
        took = served_s or (None if until is None else (until - started_at).total_seconds())
    return {
        "name": str(name),
        "id": run_id,
        "user": name.user,
        "project": name.project,
        "number": name.number,
        "label": label or None,
        "phase": phase,
        "queue": queue or None,
        "priority": priority,
        "dataset": " ".join(datasets) or None,
        "script": script.partition(":")[2] or None,
        "reason": reason or None,
        "position": position,
        "note": note or None,
        "archived": archived,
        "age": None if now is None else (now - submitted_at).total_seconds(),
        "took": took,
        "submitted": submitted_at.timestamp(),
        "started": None if started_at is None else started_at.timestamp(),
        "ended": None if ended_at is None else ended_at.timestamp(),
    }


def run_values(run: Run, latest: Mapping[str, tuple[int, float]], *, now: datetime | None) -> RunValues:
    """Returns what a query may look at of this run. latest: step and value of each metric. now: as in
    `run_fields`."""
    spec = run.spec
    fields = run_fields(
        run_id=run.id,
        name=run.name,
        label=spec.label,
        phase=str(run.phase),
        queue=spec.queue or DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY if spec.priority is None else spec.priority,
        datasets=[ref.name for ref in spec.datasets],
        script=spec.script,
        reason="" if run.exit is None else run.exit.reason,
        position=run.position,
        note=run.note,
        archived=run.archived,
        submitted_at=run.submitted_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        served_s=run.served_s,
        now=now,
    )
    metrics = {name: value for name, (_, value) in latest.items()}
    return RunValues(fields, {**spec.params, **run.params}, metrics, run.summary, spec.tags)


def _finder(name: str) -> _Finder:
    """Returns `RunValues.find` for one name. A query looks one name up in thousands of runs, so what follows
    from the name alone is computed once."""
    prefix, dot, rest = name.partition(".")
    if dot and prefix in PREFIXES:
        return _place_finder(prefix, rest)
    field = field_name(name)
    if field in _FIELD_SET:

        def find_field(run: RunValues) -> tuple[bool, QueryValue]:
            value = run.fields.get(field)
            return value is not None, value

        return find_field
    return _place_finder("", name)


def _place_finder(prefix: str, name: str) -> _Finder:
    """Returns the finder of a name in the mappings that a prefix means."""
    dashed = name.replace("-", "_")
    is_dashed = dashed != name

    def find(run: RunValues) -> tuple[bool, QueryValue]:
        for place in _places(run, prefix):
            if name in place:
                return True, place[name]
            if is_dashed and dashed in place:
                return True, place[dashed]
        return False, None

    return find


def _places(run: RunValues, prefix: str) -> tuple[Mapping[str, QueryValue], ...]:
    if not prefix:
        return run.summary, run.metrics, run.params, run.tags
    if prefix == "metrics":
        return run.summary, run.metrics
    return (run.params if prefix == "params" else run.summary if prefix == "summary" else run.tags,)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A parsed query. `accepts` returns whether a run fulfils it. names: all names in it."""

    text: str
    names: tuple[str, ...]
    accepts: Callable[[RunValues], bool] = field(compare=False)  # follows from the text


def field_name(name: str) -> str:
    """Returns the field that a name means (`state` means `phase`), or the name itself."""
    return _ALIASES.get(name, name)


def depends_on_time(names: Iterable[str]) -> bool:
    """Returns whether one of the names means a value that changes with the time: `age` or `took`."""
    return any(field_name(name) in DURATION_FIELDS for name in names)


def parse_query(text: str, *, what: str = "where") -> RunQuery:
    """Raises QueryError with the position of the mistake."""
    if len(text) > MAX_QUERY_LENGTH:
        raise QueryError(f"{what}: a query has at most {MAX_QUERY_LENGTH} characters, this has {len(text)}")
    parser = _Parser(text, what)
    accepts = parser.read_or(0)
    parser.check_end()
    return RunQuery(text, tuple(dict.fromkeys(parser.names)), accepts)


def unknown_names(names: Sequence[str], runs: Iterable[RunValues]) -> dict[str, str | None]:
    """Returns the names that no run has, each with the closest name that some run has, or None."""
    missing, known = set(names), set(FIELDS)
    for run in runs:
        missing -= {name for name in missing if run.find(name)[0] or field_name(name) in FIELDS}
        if not missing:
            return {}
        known.update(run.names())
    return {name: closest_name(name, sorted(known)) for name in names if name in missing}


def sort_key(name: str, *, descending: bool) -> Callable[[RunValues], tuple[int, float, str]]:
    """Returns the key that sorts runs by a name: numbers first, then texts, runs without a value last."""
    find = _finder(name)

    def key(run: RunValues) -> tuple[int, float, str]:
        found, value = find(run)
        if not found or value is None or (isinstance(value, float) and math.isnan(value)):
            return 2, 0.0, ""
        number = _as_number(value)
        if number is not None:
            return 0, -number if descending else number, ""
        text = str(value)
        return 1, 0.0, "".join(chr(0x10FFFF - ord(c)) for c in text) if descending else text

    return key


def parse_sort(text: str) -> tuple[str, bool]:
    """Returns the name and whether to sort descending: `val_acc`, `-val_acc`, `val_acc desc`. Raises
    SpecError for a text without a name."""
    stripped = text.strip()
    name, _, order = stripped.rpartition(" ")
    descending = stripped.startswith("-")
    if name and order.lower() in ("asc", "desc"):
        stripped, descending = name.strip(), order.lower() == "desc"
    name = stripped.lstrip("-").strip("`")
    if not name:
        raise SpecError(f"sort: `{text}` names nothing", hints=("for example val_acc, or -val_acc",))
    return name, descending


def _as_number(value: QueryValue) -> float | None:
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    return None


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


class _Parser:
    """A recursive descent over the tokens. Each method returns a predicate of a run."""

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what = text, what
        self.names: list[str] = []
        self.tokens = list(self._scan())
        self.index = 0

    def _scan(self) -> Iterator[_Token]:
        at = 0
        while self.text[at:].strip():
            found = _TOKEN.search(self.text, at)
            if found is None or found.start() != at:
                raise self.error(len(self.text) - len(self.text[at:].lstrip()), "cannot be read")
            kind = str(found.lastgroup)
            yield _Token(kind, found[kind], found.start(kind))
            at = found.end()

    def error(self, at: int, problem: str, *hints: str) -> QueryError:
        part = self.text[at : at + 30]
        place = f"`{part}` at character {at + 1}" if part else "the end"
        found = _TOKEN.search(self.text, at)
        if found is not None and found.start() != at:
            found = None
        length = len(self.text[at:].split(maxsplit=1)[0]) if part else 0
        return QueryError(
            f"{self.what}: {place} {problem}",
            hints=hints or (_EXAMPLE,),
            position=at,
            length=length if found is None else found.end() - at,
        )

    def _peek(self) -> _Token | None:
        return self.tokens[self.index] if self.index < len(self.tokens) else None

    def _take(self, *texts: str) -> _Token | None:
        token = self._peek()
        if token is not None and token.kind in ("word", "operator") and token.text.lower() in texts:
            self.index += 1
            return token
        return None

    def check_end(self) -> None:
        token = self._peek()
        if token is not None:
            raise self.error(token.start, "is not expected here", "combine conditions with `and` or `or`")

    def read_or(self, depth: int) -> Callable[[RunValues], bool]:
        parts = [self._read_and(depth)]
        while self._take("or", "||"):
            parts.append(self._read_and(depth))
        return parts[0] if len(parts) == 1 else lambda run: any(part(run) for part in parts)

    def _read_and(self, depth: int) -> Callable[[RunValues], bool]:
        parts = [self._read_not(depth)]
        while self._take("and", "&&", "&"):
            parts.append(self._read_not(depth))
        return parts[0] if len(parts) == 1 else lambda run: all(part(run) for part in parts)

    def _read_not(self, depth: int) -> Callable[[RunValues], bool]:
        if depth > _MAX_DEPTH:
            raise QueryError(f"{self.what}: the query is nested too deeply", hints=("use fewer parentheses",))
        if self._take("not"):
            part = self._read_not(depth + 1)
            return lambda run: not part(run)
        if self._take("("):
            inner = self.read_or(depth + 1)
            if not self._take(")"):
                raise self.error(self._position(), "comes where a `)` is expected")
            return inner
        return self._read_comparison()

    def _position(self) -> int:
        token = self._peek()
        return len(self.text) if token is None else token.start

    def _read_comparison(self) -> Callable[[RunValues], bool]:
        name = self._read_name()
        find = _finder(name)
        token = self._peek()
        sign = "" if token is None or token.kind != "operator" else _SYNONYMS.get(token.text, token.text)
        if sign in _COMPARISONS:
            self.index += 1
            compare = _comparison(sign, self._read_value(name, sign))
            return lambda run: compare(find(run))
        negated = self._take("not") is not None
        if self._take("in"):
            comparisons = [_comparison("=", value) for value in self._read_list(name)]

            def is_member(run: RunValues) -> bool:
                found = find(run)
                return found[0] and any(compare(found) for compare in comparisons) is not negated

            return is_member
        if negated:
            raise self.error(self._position(), "comes where `in` is expected")
        return lambda run: find(run)[0]

    def _read_name(self) -> str:
        token = self._peek()
        if token is None:
            raise self.error(len(self.text), "comes where a name is expected")
        is_part = token.kind == "word" and (token.text.startswith(".") or token.text.endswith("."))
        if token.kind not in ("word", "quoted") or is_part or _NUMBER.fullmatch(token.text):
            raise self.error(token.start, "is not a name", "the name comes first: val_acc > 0.9")
        self.index += 1
        name = token.text.replace("`", "") if token.kind == "quoted" else token.text
        self.names.append(name)
        return name

    def _read_value(self, name: str, operator: str = "=") -> QueryValue:
        token = self._peek()
        if token is None or token.kind in ("operator", "quoted"):
            raise self.error(self._position(), "comes where a value is expected")
        self.index += 1
        field, text = field_name(name), token.text
        if token.kind == "text":
            text = re.sub(r"\\(.)", r"\1", token.text[1:-1])
        if field == "phase" and operator in ("=", "!=") and text.lower() not in (*RunPhase, "null", "none"):
            closest = closest_name(text.lower(), list(RunPhase))
            hint = f"did you mean `{closest}`?" if closest else f"choose one of {', '.join(RunPhase)}"
            raise self.error(token.start, "is not a phase", hint)
        if field == "phase" and text.lower() in list(RunPhase):
            return text.lower()
        if token.kind == "text":
            return text
        if field in DURATION_FIELDS:
            return self._read_duration(token)
        if field in TIME_FIELDS:
            return self._read_time(token)
        if token.text.lower() in _WORDS:
            return _WORDS[token.text.lower()]
        return float(token.text) if _NUMBER.fullmatch(token.text) else token.text

    def _read_duration(self, token: _Token) -> float:
        if _NUMBER.fullmatch(token.text):
            return float(token.text)
        if not _DURATION.fullmatch(token.text):
            raise self.error(token.start, "is not a duration", "for example took > 2h30m")
        return sum(float(count) * _UNIT_SECONDS[unit] for count, unit in _DURATION_PART.findall(token.text))

    def _read_time(self, token: _Token) -> float:
        try:
            moment = datetime.fromisoformat(token.text)
        except ValueError:
            raise self.error(
                token.start, "is not a time", "for example submitted > 2026-11-01, or age < 7d"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def _read_list(self, name: str) -> list[QueryValue]:
        if not self._take("("):
            raise self.error(self._position(), "comes where a `(` is expected", "for example lr in (0.1, 1)")
        values = [self._read_value(name)]
        while self._take(","):
            values.append(self._read_value(name))
        if not self._take(")"):
            raise self.error(self._position(), "comes where a `)` is expected")
        return values


def _comparison(sign: str, value: QueryValue) -> Callable[[tuple[bool, QueryValue]], bool]:
    """Returns the test of what `RunValues.find` returns against a value."""
    if value is None:
        return lambda found: (sign == "=" and found[1] is None) or (sign == "!=" and found[1] is not None)
    if sign == "~":
        part = str(value).lower()
        return lambda found: found[0] and found[1] is not None and part in str(found[1]).lower()
    right, text, is_bool = _as_number(value), _text(value), isinstance(value, bool)
    compare = _OPERATORS[sign]

    def test(found: tuple[bool, QueryValue]) -> bool:
        actual = found[1]
        if not found[0] or actual is None:
            return False
        left = _as_number(actual)
        if isinstance(actual, bool) is not is_bool or left is None or right is None:
            return _compare_texts(_text(actual), sign, text)
        if math.isnan(right):
            return {"=": math.isnan(left), "!=": not math.isnan(left)}.get(sign, False)
        return compare(left, right)

    return test


def _text(value: QueryValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _compare_texts(left: str, sign: str, right: str) -> bool:
    """Texts are ordered only against texts: a text is neither above nor below a number."""
    if sign not in ("=", "!=") and (_NUMBER.fullmatch(left) or _NUMBER.fullmatch(right)):
        return False
    return _OPERATORS[sign](left, right)
