"""Answers have the fields of the domain's records, and the description of the API is complete."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.run import Run
from hopyard.replica.stream_shipper import status_body
from hopyard.server.export_openapi import openapi_document
from hopyard.server.schemas.runs import ReplicaStatusIn, RunOut


def test_replica_status_has_ages_instead_of_times() -> None:
    """The record has times, by the clock of the server."""
    names = {field.name for field in msgspec.structs.fields(ReplicaStatusIn)}
    assert names | {"is_unsent"} == {  # the engine alone knows that of a replica that is dead
        field.name.replace("_at", "_s") for field in msgspec.inspect.type_info(ReplicaStatus).fields
    }  # type: ignore[union-attr]
    began_at, ended_at = (datetime.now(UTC) - timedelta(seconds=ago_s) for ago_s in (40, 10))
    over = Exit(ExitKind.EXIT_CODE, 0, "finished")
    body = status_body(ReplicaStatus(0, ReplicaPhase.EXITED, "", over, began_at, ended_at))
    result = msgspec.convert(body, ReplicaStatusIn)
    assert (result.began_s, result.ended_s) == (pytest.approx(40, abs=9), pytest.approx(10, abs=9))


def test_run_schema_has_all_run_fields() -> None:
    assert {*Run.__dataclass_fields__} <= {*RunOut.__struct_fields__}


def test_every_openapi_reference_is_resolved() -> None:
    document = openapi_document()

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            value = list(value.values())
        for inner in value if isinstance(value, list) else ():
            yield from references(inner)

    result = set(references(document))
    assert result
    for reference in result:
        place: Any = document
        for part in reference.removeprefix("#/").split("/"):
            assert part in place, reference
            place = place[part]
