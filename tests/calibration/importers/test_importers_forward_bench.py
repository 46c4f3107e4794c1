"""vllm bench forward results, built as vllm/benchmarks/forward/main.py of 0.33 writes them: a list of cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.importers.engine_steps import read_steps
from calibration.importers.forward_bench import read_forward_bench
from catalogs.errors import InputError


def request(query: int, kv: int, drafts: int = 0, chunked: bool = False) -> dict[str, Any]:
    return {"query_len": query, "kv_len": kv, "num_draft_tokens": drafts, "chunked": chunked}


def case(name: str, requests: list[dict[str, Any]], median_us: float = 900.0) -> dict[str, Any]:
    latency = {
        "timer": "graph_events",
        "median": median_us,
        "sample_spread_pct": 0.2,
        "mean": median_us,
        "std": 1.0,
        "min": median_us - 1,
        "p90": median_us + 1,
        "count": 3,
        "samples_us": [median_us - 1, median_us, median_us + 1],
    }
    rank = {
        "num_tokens": sum(r["query_len"] for r in requests),
        "kv_blocks": 7,
        "routing": "real",
        "finite": True,
        "graph_vs_eager": {"relative_rms": 1e-6},
        "latency_us": latency,
    }
    return {"case": name, "requests": requests, "median_us": median_us, "ranks": [rank]}


def written(folder: Path, data: Any) -> Path:
    path = folder / "forward.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2))
    return path


def test_batches_are_told_apart_as_the_benchmark_does(tmp_path: Path) -> None:
    mix = [request(8192, 8192), request(2048, 10240), *[request(1, 4096)] * 32, request(4, 1000, drafts=3)]
    found = read_forward_bench(written(tmp_path, [case("mix", mix, 12_345.6), case("first", [request(1, 1)])]))
    assert found.notes == ()
    row = found.rows.iloc[0]
    assert row.seconds == pytest.approx(0.0123456)
    assert (row.context_requests, row.context_tokens, row.context_prefix_tokens) == (2, 10240, 8192)
    assert (row.generation_requests, row.generation_tokens) == (33, 36)
    assert row.generation_context_tokens == 32 * 4096 + 1000
    assert row.max_context_tokens == 10240
    assert row.spread == pytest.approx(0.002)
    assert found.rows.iloc[1].context_requests == 1  # one token without a prefix is a prefill


def test_faulty_cases_are_dropped_and_named(tmp_path: Path) -> None:
    good, milliseconds, infinite = (case(n, [request(1, 100)]) for n in ("good", "ms", "nan"))
    milliseconds["median_us"] /= 1e3
    infinite["ranks"][0]["finite"] = False
    cases = [good, milliseconds, infinite, case("short", [request(10, 5)]), case("none", [request(1, 9)], 0.0)]
    found = read_forward_bench(written(tmp_path, cases))
    assert found.rows["case"].tolist() == ["good"]
    assert found.notes == (
        "dropped 1 of 5 cases: batch makes no sense",
        "dropped 1 of 5 cases: median and samples disagree (wrong unit?)",
        "dropped 1 of 5 cases: no time",
        "dropped 1 of 5 cases: output not finite",
    )


def test_unstable_cases_stay_and_are_said(tmp_path: Path) -> None:
    shaky = case("shaky", [request(1, 100)])
    shaky["ranks"][0]["latency_us"]["sample_spread_pct"] = 3.0
    found = read_forward_bench(written(tmp_path, [shaky]))
    assert len(found.rows) == 1
    assert "1 cases have sample medians" in found.notes[0]


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    text = json.dumps([case("a", [request(1, 9)])])
    cases = {"not a valid": text[:-20], "empty": "[]", "median_us": json.dumps([{"case": "a", "requests": []}])}
    for match, data in cases.items():
        with pytest.raises(InputError, match=match):
            read_forward_bench(written(tmp_path, data))


def test_one_door_for_steps(tmp_path: Path) -> None:
    assert read_steps(written(tmp_path, [case("a", [request(1, 9)])])).what == "forwards"
    with pytest.raises(InputError, match="no engine steps"):
        read_steps(written(tmp_path, "[launcher.py] hello\n"))
    with pytest.raises(InputError, match="cannot be read"):
        read_steps(tmp_path / "absent")
