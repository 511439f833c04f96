"""Parameters that a statement of a prompt assigns."""

from __future__ import annotations

import json
import socket
from typing import Any

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameReader
from hopyard.sdk.params import Params
from hopyard.sdk.prompt_session import PromptSession


def evaluate(params: Params, names: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """Evaluates a statement. Returns the changes of parameters, and what the user sees of errors."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = PromptSession(ours, FrameReader(), lambda: names, lambda: [(params, list(params))])
        session._accept(frames.STATEMENT, json.dumps({"source": source}).encode())
        assert session.serve(1)
        received: dict[str, Any] = {}
        reader, errors = FrameReader(), ""
        while "changes" not in received:
            for kind, payload in reader.feed(theirs.recv(65536)):
                if kind == frames.RESULT:
                    received = frames.fields_of(payload)
                elif kind == frames.ERROR_OUTPUT:
                    errors += payload.decode()
    return received["changes"], errors


def test_assigned_parameters_have_their_old_values_until_the_command_applies() -> None:
    params = Params({"lr": 0.1, "batch_size": 64})
    changes, errors = evaluate(params, {"p": params}, "p.lr = 0.5; assert p.lr == 0.5")
    assert (changes, errors, params.lr) == ({"lr": 0.5}, "", 0.1)


def test_parameters_of_a_batch_rule_are_set_by_their_given_values() -> None:
    params = Params({"lr": 0.1, "batch_size": 64})
    scaled = params.per_batch(32)
    changes, errors = evaluate(params, {"p": scaled}, "p.lr = 0.5; p.batch_size = 128")
    assert (changes, errors) == ({"lr": 0.5, "batch_size": 128}, "")
    assert (scaled.lr, scaled.batch_size, params.lr) == (0.2, 64, 0.1)
    # an item of the given parameters changes the effective ones at once
    changes, errors = evaluate(params, {"given": params}, "given['batch_size'] = 128")
    assert (changes, errors) == ({"batch_size": 128}, "")
    assert (scaled.lr, scaled.scaling.global_batch, params.batch_size) == (0.2, 64, 64)


def test_misspelt_parameter_is_named() -> None:
    params = Params({"lr": 0.1})
    changes, errors = evaluate(params, {"p": params}, "p.lrr = 0.5")
    assert changes == {}
    assert errors == (
        "note: only this process has `lrr`: the script has no parameter `lrr`; did you mean `lr`?\n"
    )
