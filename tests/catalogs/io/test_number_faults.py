"""What is said of a value that should be a number: the value itself, and the nearest number or a hint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt

from catalogs.errors import InputError, nearest_number
from catalogs.io.yaml_files import validate_as
from catalogs.ui.entry_point import run_command
from planner.cli.main import app


class Block(BaseModel):
    """A block with a whole number and a number."""

    n: int = 1
    share: float = 0.5
    count: PositiveInt = 1
    below: int = Field(default=1, lt=10)
    ratio: PositiveFloat = 0.5


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("n", 1.6, "2"),
        ("n", "1,000", "1000"),
        ("n", "8 GPUs", "8"),
        ("share", "0.25 or so", "0.25"),
        ("n", "12abc", None),
        ("share", "90 %", "0.9"),
        ("share", "97.5%", "0.975"),
        ("share", "0.9%", None),
        ("n", "90%", None),
        ("n", "2k", "2000"),
        ("share", "1.5M", "1500000"),
        ("share", "5 rps", "5"),
        ("share", "$10", "10"),
        ("n", "10USD", "10"),
        ("n", "100ms", None),
        ("share", "2,5", None),
        ("share", "1e305M", None),
        ("n", "fixed:100", "100"),
        ("n", "tokens = 1,000", "1000"),
        ("n", "many", None),
        ("n", "1e400", None),
        ("n", [4], None),
        ("share", "", None),
    ],
)
def test_the_nearest_number_is_what_the_value_begins_with(key: str, value: object, nearest: str | None) -> None:
    with pytest.raises(InputError) as wrong:
        validate_as(Block, {key: value}, "b.yaml")
    assert (wrong.value.value, wrong.value.nearest) == (value, nearest)
    assert bool(wrong.value.hint) == (nearest is None)


@pytest.mark.parametrize(
    ("key", "value", "nearest"), [("count", -3, "1"), ("count", 0, "1"), ("below", 10, "9"), ("ratio", -1, None)]
)
def test_beyond_an_excluded_bound_the_next_whole_number_is_nearest(key: str, value: int, nearest: str | None) -> None:
    with pytest.raises(InputError) as wrong:
        validate_as(Block, {key: value}, "b.yaml")
    assert (wrong.value.value, wrong.value.nearest) == (value, nearest)


NUMBER_LIKE = st.from_regex(r"[0-9,_.eE% ]{1,12}", fullmatch=True)


@given(st.one_of(st.text(max_size=20), st.floats(), st.integers(), NUMBER_LIKE))
def test_what_is_named_is_a_number_and_never_an_error(value: object) -> None:
    for is_whole in (True, False):
        nearest = nearest_number(value, is_whole=is_whole)
        assert nearest is None or float(nearest) >= 0
        assert nearest is None or not is_whole or int(nearest) == float(nearest)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["--agents", "many"], "got 'many'; hint: a number in digits, such as 8"),
        (["--rate=2 per second"], "got '2 per second'; nearest valid choice: 2"),
        (["--users", "1.5"], "got '1.5'; nearest valid choice: 2"),
    ],
)
def test_options_repeat_a_value_that_is_no_number(
    words: list[str], end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command("plan", app, ["--model", "llama3.1-8b", *words]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"plan: Invalid value for '{words[0].partition('=')[0]}': ")
    assert line.endswith(f"{end}\n")
