"""An engine that was not timed on a board takes its tables from another board of the same chip (`releases_like`).

Where both boards have tables of the engine, those of the sibling must predict them better than those of another engine
on the same board, which is what the rule replaces.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.bundles import bundle
from calibration.bundles.bundle import Bundle, load_bundle, shipped_folder
from calibration.bundles.releases import releases_in
from calibration.operators.operators import Collective, DecodeAttention, Gemm, GroupedGemm, Operator, PrefillAttention
from catalogs.engines.files import load_engine
from catalogs.hardware.catalog import list_hardware, parse_hardware

BATCHES = (1.0, 8.0, 64.0, 512.0, 4096.0)
SIBLINGS = [("gb200", "b200"), ("b200", "gb200"), ("h200", "h100"), ("h100", "h200")]


@pytest.fixture(autouse=True)
def without_user_bundles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("calibration.bundles.bundle.user_folder", lambda: tmp_path)


def operators() -> list[Operator]:
    """Return operators of Llama 70B, Qwen3 32B, Qwen3 235B, Mixtral 8x7B and DeepSeek-V3 in several batches."""
    found: list[Operator] = []
    for rows in BATCHES:
        found += [Gemm(rows, n, k, dtype) for n, k in ((10240, 8192), (8192, 7168)) for dtype in ("bf16", "fp8")]
        found += [GroupedGemm(rows, 4096, 1536, 128, 8, 1, "fp8_block"), GroupedGemm(rows, 4096, 7168, 8, 2, 1, "bf16")]
        found += [
            Collective("all_reduce", rows * 2 * hidden, ranks, graph=True)
            for hidden in (4096, 8192)
            for ranks in (4, 8)
        ]
    found += [DecodeAttention(n, n * 1000, 1000, 16, 2, 128, kv) for n in (8.0, 64.0) for kv in ("bf16", "fp8")]
    found += [PrefillAttention(1.0, n, n * n / 2, 16, 2, 128, "bf16") for n in (1024.0, 8192.0)]
    return found


def errors(of: Bundle, against: Bundle) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return |log(seconds / seconds of `against`)| of each operator, shape (n,)."""
    pairs = [(float(of.cost(op).seconds), float(against.cost(op).seconds)) for op in operators()]
    return np.array([abs(np.log(a / b)) for a, b in pairs])


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
@pytest.mark.parametrize(("board", "sibling"), SIBLINGS)
def test_a_sibling_predicts_an_engine_better_than_another_engine_on_the_same_board(
    monkeypatch: pytest.MonkeyPatch, board: str, sibling: str, engine: str
) -> None:
    unit, profile = parse_hardware(board).accelerator, load_engine(engine)
    measured = load_bundle(unit, engine=profile)
    monkeypatch.setattr(bundle, "releases_in", lambda folder: {} if folder.name == board else releases_in(folder))
    other = load_bundle(unit, engine=profile)
    lent = load_bundle(replace(unit, releases_like=sibling), engine=profile)
    assert (other.provenance["hardware"], other.provenance["engine"]) == (board, "vllm")
    assert (lent.provenance["hardware"], lent.provenance["engine"]) == (sibling, engine)
    by_sibling, by_engine = errors(lent, measured), errors(other, measured)
    assert float(np.median(by_sibling)) < 0.05
    assert float(np.mean(by_sibling)) < 0.6 * float(np.mean(by_engine))


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
@pytest.mark.parametrize(
    ("hardware", "sibling"), [("b300x8", "b200"), ("gb300x4", "gb200"), ("gb300-nvl72x8", "gb200")]
)
def test_an_engine_without_tables_takes_those_of_the_sibling(hardware: str, sibling: str, engine: str) -> None:
    unit, profile = parse_hardware(hardware).accelerator, load_engine(engine)
    found = load_bundle(unit, engine=profile)
    assert (found.provenance["hardware"], found.provenance["engine"]) == (sibling, engine)
    assert found.transferred
    assert found.measured_on is not None
    assert sum(f"no public operator tables of {engine}" in n for n in found.notices) == 1
    own = load_bundle(unit, engine=load_engine("vllm"))
    assert (own.provenance["hardware"], own.provenance["engine"]) == (hardware.split("x")[0].split("-")[0], "vllm")


def test_an_engine_that_the_sibling_lacks_too_keeps_the_tables_of_the_board() -> None:
    found = load_bundle(parse_hardware("b300").accelerator, engine=load_engine("llama.cpp"))
    assert found.provenance["hardware"] == "b300"


def test_siblings_are_measured_boards_of_the_same_architecture_that_other_engines_were_timed_on() -> None:
    units = {name: parse_hardware(name).accelerator for name in list_hardware()}
    siblings = {name: unit.releases_like for name, unit in units.items() if unit.releases_like}
    assert siblings == {"b300": "b200", "gb300": "gb200", "gb300-nvl72": "gb200"}
    for name, sibling in siblings.items():
        timed = {release.engine for release in releases_in(shipped_folder() / sibling)}
        assert units[name].architecture == units[sibling].architecture
        assert {"sglang", "trtllm"} <= timed
