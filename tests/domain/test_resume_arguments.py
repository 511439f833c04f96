"""Arguments of attempts that begin with a checkpoint."""

from __future__ import annotations

import pytest

from hopyard.domain.resume_arguments import check_resume_arguments, parse_resume_arguments
from hopyard.errors import SpecError


def test_words_and_parameters_get_the_path() -> None:
    texts = ("--resume {checkpoint}", "--strict=False", "-p init_from=resume -p at='{checkpoint}'")
    parsed = parse_resume_arguments(texts).filled("/run/out/ckpt 5.pt")
    assert parsed.words == ("--resume", "/run/out/ckpt 5.pt", "--strict=False")
    assert parsed.params == ("init_from=resume", "at=/run/out/ckpt 5.pt")


@pytest.mark.parametrize(
    "text", ["", "  ", "--a 'b", "-p", "-p a", "-p a=1 --b", "-p =1", "--at {checkpoint"]
)
def test_bad_texts_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--resume-arg"):
        check_resume_arguments((text,))
