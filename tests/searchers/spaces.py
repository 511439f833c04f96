"""Random search spaces."""

from __future__ import annotations

from hypothesis import strategies as st

from hopyard.domain.space import Choice, Condition, Constant, Domain, Integer, Parameter, Space, Uniform

VALUES = st.one_of(
    st.integers(-5, 5),
    st.booleans(),
    st.sampled_from(["a", "b", "c"]),
    st.none(),
    st.sampled_from([0.25, 1.5]),
)


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    points = draw(st.none() | st.integers(1, 5))
    match draw(st.integers(0, 5)):
        case 0:
            return Choice(tuple(draw(st.lists(VALUES, min_size=1, max_size=4, unique=True))))
        case 1:
            return Constant(draw(VALUES))
        case 2:
            low, wide, log = draw(st.integers(-20, 20)), draw(st.integers(0, 100)), draw(st.booleans())
            start, end = max(1, low) if log else low, max(1, low) + wide
            step = draw(st.integers(1, max(1, min(7, end - start))))
            return Integer(start, end, log, step, points)
        case 3:
            low, ratio = draw(st.floats(1e-9, 1e6)), draw(st.floats(1, 1e6))
            return Uniform(low, low * ratio, log=True, points=points)
        case 4:
            low, wide = draw(st.floats(-1e6, 1e6)), draw(st.floats(0, 1e6))
            return Uniform(low, low + wide, points=points)
        case _:
            quantum = draw(st.sampled_from([0.1, 0.25, 0.3, 1.0, 7.0]))
            low, count = draw(st.integers(0, 10)) * quantum, draw(st.integers(0, 20))
            return Uniform(low, low + count * quantum, step=quantum, points=points)


@st.composite
def spaces(draw: st.DrawFn, *, most: int = 5) -> Space:
    parameters: list[Parameter] = []
    for number in range(draw(st.integers(1, most))):
        conditions = []
        choices = [before for before in parameters if isinstance(before.domain, Choice)]
        if choices and draw(st.booleans()):
            on = draw(st.sampled_from(choices))
            assert isinstance(on.domain, Choice)
            conditions = [
                Condition(on.name, tuple(draw(st.lists(st.sampled_from(on.domain.values), min_size=1))))
            ]
        parameters.append(Parameter(f"p{number}", draw(domains()), tuple(conditions)))
    return Space(tuple(parameters))
