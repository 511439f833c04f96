"""Statements of a prompt in the scope of a loop."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.sdk.prompt_scope import PromptScope

LEVEL = 3


def test_local_variables_change_and_other_names_stay_in_the_prompt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scope, errors = PromptScope(lambda: {"model": "bound", "LEVEL": "hidden"}), list[str]()
    weight, inner = 1, [0.5]

    def read() -> Any:
        return inner

    first = "weight = weight + LEVEL; extra = 7; [weight * x for x in inner]"
    assert scope.run(first, "single", errors.append), errors
    assert weight == 4
    assert scope.run("inner = ['new']\nextra, model\n'\\ud800'", "script", errors.append), errors
    assert (read(), "extra" in locals(), "extra" in globals()) == (["new"], False, False)
    assert capsys.readouterr().out == "[2.0]\n(7, 'bound')\n'\\ud800'\n"


def test_function_of_the_prompt_sees_later_values(capsys: pytest.CaptureFixture[str]) -> None:
    scope, errors = PromptScope(dict), list[str]()
    sources = ("def show(): return later, epoch\n", "later = 1", "show()", "later = 2", "show()")
    for epoch, source in enumerate(sources):
        assert epoch >= 0
        assert scope.run(source, "single", errors.append), errors
    assert capsys.readouterr().out == "(1, 2)\n(2, 4)\n"


def test_errors_are_shown_with_the_statement_alone() -> None:
    scope, errors = PromptScope(dict), list[str]()
    assert not scope.run("value = 1\n1 / 0\nvalue = 2", "script", errors.append)
    assert ("1 / 0" in errors[0], "prompt_scope" in errors[0]) == (True, False), errors
    assert scope.run("assert value == 1", "single", errors.append)
    for source, shown in (("x =", "SyntaxError"), ("raise SystemExit(3)", "the script continues")):
        assert not scope.run(source, "script", errors.append)
        assert shown in errors[-1]


def test_names_are_completed() -> None:
    some_model = "text"
    found = PromptScope(dict).complete("some_m")
    assert found == ["some_model"]
    assert PromptScope(dict).complete("some_model.capi") == [f"some_model.{some_model.capitalize.__name__}()"]


def test_completion_of_an_object_that_raises_finds_nothing() -> None:
    class Lazy:
        def __dir__(self) -> list[str]:
            return ["model"]

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    some_module = Lazy()
    assert PromptScope(dict).complete("some_module.mod") == []
    assert dir(some_module) == ["model"]
