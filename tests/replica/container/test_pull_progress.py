"""The progress of pulls, from streams that Docker and Podman have sent."""

from __future__ import annotations

import json

from hopyard.replica.container.pull_progress import PullProgress

PODMAN = """
{"status": "Pulling fs layer", "progressDetail": {}, "id": "6d9cf7bec515"}
{"status": "Pulling fs layer", "progressDetail": {}, "id": "4f497dbe6667"}
{"status": "Download complete", "progressDetail": {}, "id": "6d9cf7bec515"}
{"status": "Downloading", "progressDetail": {"current": 10518528, "total": 41956045}, "id": "4f497dbe6667"}
{"status": "Downloading", "progressDetail": {"current": 41956045, "total": 41956045}, "id": "4f497dbe6667"}
{"status": "Download complete", "progressDetail": {}, "id": "4f497dbe6667"}
"""
DOCKER = """
{"status": "Pulling from library/python", "id": "3.12-slim"}
{"status": "Already exists", "progressDetail": {}, "id": "13808c22b207"}
{"status": "Pulling fs layer", "progressDetail": {}, "id": "6e909acdb790"}
{"status": "Waiting", "progressDetail": {}, "id": "5eaa34f5b9c2"}
{"status": "Downloading", "progressDetail": {"current": 32768, "total": 3511296}, "id": "6e909acdb790"}
{"status": "Verifying Checksum", "progressDetail": {}, "id": "6e909acdb790"}
{"status": "Download complete", "progressDetail": {}, "id": "6e909acdb790"}
{"status": "Extracting", "progressDetail": {"current": 3, "units": "s"}, "id": "6e909acdb790"}
{"status": "Pull complete", "progressDetail": {}, "id": "6e909acdb790"}
{"status": "Digest: sha256:fd95fa221297a88e1cf49c55ec1828edd7c5a428187e67b5d1805692d11588db"}
"""


def _texts(stream: str, *, seconds_per_event: float) -> list[str]:
    """Returns the reports of a pull of which an event arrives every few seconds."""
    texts: list[str] = []
    now = 0.0
    progress = PullProgress("python:3", texts.append, clock=lambda: now)
    for line in stream.split("\n"):
        if line:
            now += seconds_per_event
            progress.add(json.loads(line))
    return [text.removeprefix("pulling image python:3: ") for text in texts]


def test_layers_and_bytes_of_podman() -> None:
    assert _texts(PODMAN, seconds_per_event=5.0) == [
        "0 of 1 layers, 0 B",
        "0 of 2 layers, 0 B",
        "1 of 2 layers, 0 B",
        "1 of 2 layers, 10.0 MiB",
        "1 of 2 layers, 40.0 MiB",
        "2 of 2 layers, 40.0 MiB",
    ]


def test_layers_and_bytes_of_docker() -> None:
    texts = _texts(DOCKER, seconds_per_event=5.0)
    assert texts[:4] == [
        "1 of 1 layers, 0 B",
        "1 of 2 layers, 0 B",
        "1 of 3 layers, 0 B",
        "1 of 3 layers, 32.0 KiB",
    ]
    assert set(texts[5:]) == {"2 of 3 layers, 32.0 KiB"}  # the seconds of an extraction are no bytes


def test_reports_are_seconds_apart() -> None:
    assert len(_texts(PODMAN, seconds_per_event=2.0)) == 2
    assert _texts(PODMAN, seconds_per_event=0.5) == []


def test_events_with_other_content_are_ignored() -> None:
    odd = '{"status": "Downloading", "progressDetail": %s, "id": "6d9cf7bec515"}\n'
    stream = "".join(odd % detail for detail in ("null", "[]", '{"current": "3"}', '{"current": null}'))
    stream += '{}\n{"status": null, "id": 3}\n{"id": "6d9cf7bec515"}\n'
    assert set(_texts(PODMAN + stream, seconds_per_event=5.0)[6:]) == {"2 of 2 layers, 40.0 MiB"}
