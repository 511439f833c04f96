"""Tags and the note that a script sets through another library, such as `mlflow.set_tag`. They never replace
what a user set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hopyard.domain.run import RunSpec
from hopyard.domain.tag_limits import MAX_TAGS

_MAX_SIZE = 64 * 1024  # characters of the tags of one run together


@dataclass(frozen=True, slots=True)
class ScriptTags:
    """tags: None removes a tag. note: None leaves it unchanged."""

    tags: Mapping[str, str | None] = field(default_factory=dict)
    note: str | None = None


def apply_script_tags(
    spec: RunSpec, note: str, logged: ScriptTags, new: ScriptTags
) -> tuple[RunSpec, str, ScriptTags]:
    """Returns the spec, the note, and all that the script has set so far.

    logged: what the script had set before. Only such values and missing ones change, so a tag or note that a
    user has set stays. A tag beyond the limits is dropped.
    """
    tags, own = dict(spec.tags), dict(logged.tags)
    size = sum(len(key) + len(value) for key, value in tags.items())
    for key, value in new.tags.items():
        before = tags.get(key)
        if before is not None and before != own.get(key):
            continue
        size -= 0 if before is None else len(key) + len(before)
        own.pop(key, None)
        tags.pop(key, None)
        if (
            value is not None
            and len(tags) < MAX_TAGS
            and (new_size := size + len(key) + len(value)) <= _MAX_SIZE
        ):
            own[key] = tags[key] = value
            size = new_size
    own_note = logged.note
    if new.note is not None and note in ("", own_note):
        note = own_note = new.note
    return replace(spec, tags=tags), note, ScriptTags(own, own_note)


def without_script_tags(spec: RunSpec, logged: ScriptTags) -> RunSpec:
    """Returns the spec for a fork: its script sets the tags itself."""
    tags = {key: value for key, value in spec.tags.items() if logged.tags.get(key) != value}
    return spec if len(tags) == len(spec.tags) else replace(spec, tags=tags)


def encode_script_tags(logged: ScriptTags) -> str:
    return json.dumps({"tags": logged.tags, "note": logged.note})


def decode_script_tags(text: str) -> ScriptTags:
    values = json.loads(text or "{}")
    return ScriptTags(values.get("tags", {}), values.get("note"))
