"""The YAML and JSON that users write: the same values from both, and one line for what neither should hold."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import LONGEST_VALUE, InputError
from catalogs.io.input_files import MOST_LEVELS, read_limited, read_text
from catalogs.io.json_files import parse_json
from catalogs.io.yaml_files import parse_yaml
from catalogs.io.yaml_loader import MOST_VALUES, dump_yaml, load_yaml

texts = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\ufffe\uffff"), max_size=8)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(texts, documents, min_size=1, max_size=4))
def test_yaml_and_json_give_the_same_values(document: dict[str, Any]) -> None:
    text = json.dumps(document, ensure_ascii=False)
    assert parse_json(text, "x") == document
    assert parse_yaml(text, "x") == document


@pytest.mark.parametrize(("text", "value"), [("1e-6", 1e-6), ("-1E+3", -1e3), ("1.5e3", 1.5e3), ("2.e1", 20.0)])
def test_numbers_with_an_exponent_are_numbers(text: str, value: float) -> None:
    assert load_yaml(f"a: {text}") == {"a": value}


@pytest.mark.parametrize("text", ["e5", "1e", "1e5x", "0x1e-5", "1-e5", "v1e-5"])
def test_other_texts_stay_texts(text: str) -> None:
    assert load_yaml(f"a: {text}") == {"a": text}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\n? [b]\n: 2\n", 2, "a key must be a single value"),
        ("a: 1\nb: 2020-13-45\n", 2, "not a valid timestamp (month must be in 1..12)"),
        ("a: 1\nb: 2\na: 3\n", 3, "key 'a' is written twice"),
        (f"a: {'9' * 5000}\n", 1, "an integer has more than 30 digits"),
        ("a:\n  " + "[" * (MOST_LEVELS + 1), 2, "levels of nesting"),
        ("a: &a [1, *a]\n", 1, "stands for nothing, or for itself"),
        ("a: !!bool maybe\n", 1, "not a valid bool"),
    ],
)
def test_what_no_configuration_holds_is_one_line_with_its_place(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "here")
    assert str(caught.value).startswith(f"here line {line} is not valid YAML: ")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_aliases_count_with_all_that_they_stand_for() -> None:
    doubled = "a0: &a0 [1, 2]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    start = time.process_time()
    with pytest.raises(yaml.YAMLError, match=f"more than {MOST_VALUES:,} values"):
        load_yaml(doubled)
    assert time.process_time() - start < 5.0  # 2**39 values are never built
    assert load_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a\n")["b"] == {"x": 1, "y": 2}


def test_a_file_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(path, "cannot read it") == "abc"
    assert read_limited(path, "cannot read it", 6) == b"\xef\xbb\xbfabc"
    with pytest.raises(InputError, match="larger than"):
        read_limited(path, "cannot read it", 5)


@pytest.mark.parametrize(
    "value", ["x" * 10**6, list(range(10**5)), 10**5000, b"\x00" * 10**6], ids=["text", "list", "integer", "bytes"]
)
def test_long_values_are_shortened_in_messages(value: object) -> None:
    assert len(str(InputError("a rule", value))) < LONGEST_VALUE + 100


def test_messages_are_printable() -> None:
    assert str(InputError("cannot read \x1b[31mred\udcff", "a\x07")) == r"cannot read \x1b[31mred\udcff: got 'a\x07'"


@given(st.dictionaries(texts | st.just("1e5"), documents | st.from_regex(r"[0-9]e[0-9]", fullmatch=True), max_size=4))
def test_written_values_are_read_back(document: dict[str, Any]) -> None:
    assert load_yaml(dump_yaml(document)) == document
