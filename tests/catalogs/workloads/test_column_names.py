"""Columns under the names of common tools: recognised, their clocks too, and what is not read is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.workloads.trace_formats import OTHER_NAMES, recognise_clock, recognise_format
from catalogs.workloads.traces import Trace, read_trace
from catalogs.workloads.workload import load_workload

CSVS = {
    "OpenAI usage": "created,model,prompt_tokens,completion_tokens\n1700000000,m,374,44\n1700000001.5,m,396,109\n",
    "Azure without arrivals": "ContextTokens,GeneratedTokens\n374,44\n396,109\n",
    "InferenceX": "ISL,OSL\n374,44\n396,109\n",
    "Gemini": "promptTokenCount,candidatesTokenCount,timestamp\n"
    "374,44,2026-01-01T00:00:00Z\n396,109,2026-01-01T00:00:01.5Z\n",
    "milliseconds": "timestamp_ms,prompt_len,output_len\n0,374,44\n1500,396,109\n",
    "seconds": "Arrival Time (s),Input Tokens,Output Tokens\n0,374,44\n1.5,396,109\n",
    "nanoseconds": "ts,n_prompt_tokens,n_output_tokens\n1700000000000000000,374,44\n1700000001500000000,396,109\n",
}


def read(folder: Path, text: str) -> Trace:
    (folder / "t.csv").write_text(text)
    return read_trace(folder / "t.csv")


@pytest.mark.parametrize("name", CSVS)
def test_files_of_common_tools_are_read(name: str, tmp_path: Path) -> None:
    trace = read(tmp_path, CSVS[name])
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([374, 396], [44, 109])
    if trace.arrival_s is not None:
        assert trace.arrival_s.tolist() == pytest.approx([0.0, 1.5], abs=1e-6)
    assert (trace.arrival_s is None) == (name in ("Azure without arrivals", "InferenceX"))


def test_every_other_name_is_read_in_any_spelling() -> None:
    inputs, outputs, arrivals = (OTHER_NAMES[role] for role in ("input tokens", "output tokens", "arrival"))
    spellings: list[Callable[[str], str]] = [
        str.lower,
        str.upper,
        lambda name: name.replace("_", " "),
        lambda name: f"usage.{name}",
    ]
    for spelled in spellings:
        for name in inputs:
            found = recognise_format([spelled(name), spelled(outputs[0])], "t")
            assert (found.input_tokens, found.output_tokens) == (spelled(name), spelled(outputs[0]))
        for name in outputs:
            assert recognise_format([spelled(inputs[0]), spelled(name)], "t").output_tokens == spelled(name)
        for name in arrivals:
            assert recognise_format([spelled(inputs[1]), spelled(outputs[1]), spelled(name)], "t").arrival == spelled(
                name
            )


def test_no_name_has_two_meanings() -> None:
    names = [name.replace("_", "") for names in OTHER_NAMES.values() for name in names]
    assert len(names) == len(set(names))


def test_json_lines_with_nested_usage_are_read(tmp_path: Path) -> None:
    rows = [{"created": 1.7e9 + i, "usage": {"prompt_tokens": 5 + i, "completion_tokens": 7}} for i in range(3)]
    trace = read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([5, 6, 7], [7, 7, 7])
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 1.0, 2.0]


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    (notice,) = read(tmp_path, "ISL,OSL,user,region\n3,4,a,b\n").notices
    assert notice == "trace t.csv: columns that are not used: user, region"
    assert not read(tmp_path, "arrival_s,input_tokens,output_tokens,session,model,priority\n0,3,4,a,m,1\n").notices
    (tmp_path / "w.csv").write_text("ISL,OSL,user\n3,4,a\n")
    assert any("user" in notice for notice in load_workload(str(tmp_path / "w.csv")).notices)


def test_the_model_of_another_service_is_not_the_served_model(tmp_path: Path) -> None:
    trace = read(tmp_path, "prompt_tokens,completion_tokens,model\n3,4,gpt-x\n")
    assert trace.requested_models is None
    assert trace.notices == ("trace t.csv: columns that are not used: model",)
    assert read(tmp_path, "input_tokens,output_tokens,model\n3,4,llama3.1-8b\n").models == ("llama3.1-8b",)


def test_a_unit_that_is_guessed_is_stated(tmp_path: Path) -> None:
    (notice,) = read(tmp_path, "time,prompt_tokens,completion_tokens\n0,3,4\n2,3,4\n").notices
    assert notice == "trace t.csv: time is read as seconds"
    assert not read(tmp_path, "arrived_at,prompt_tokens,completion_tokens\n0,3,4\n2,3,4\n").notices


@given(
    start_s=st.integers(10**9, 2 * 10**9), unit=st.sampled_from([(1, 1.0), (10**3, 1e-3), (10**6, 1e-6), (10**9, 1e-9)])
)
def test_times_since_1970_tell_their_unit(start_s: int, unit: tuple[int, float]) -> None:
    times, factor = unit
    assert recognise_clock("created", [start_s * times], "t") == (factor, True, "")


@given(order=st.permutations(range(6)))
def test_a_log_in_any_order_is_sorted_by_arrival(order: list[int]) -> None:
    with TemporaryDirectory() as folder:
        rows = "".join(f"{1_700_000_000 + i},{10 + i},{20 + i},s{i}\n" for i in order)
        trace = read(Path(folder), f"created,prompt_tokens,completion_tokens,session\n{rows}")
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert trace.input_tokens.tolist() == [10, 11, 12, 13, 14, 15]
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, 1, 2, 3, 4, 5]
    assert bool(trace.notices) == (order != sorted(order))


def test_failed_requests_of_a_log_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, "prompt_tokens,completion_tokens\n3,4\n3,0\n")
    assert trace.input_tokens.tolist() == [3]
    assert "left out 1 failed requests" in trace.notices[0]


def test_a_file_without_lengths_names_the_columns_it_may_have(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="prompt_tokens") as caught:
        read(tmp_path, "when,cost\n0,3\n")
    assert "\n" not in str(caught.value)
