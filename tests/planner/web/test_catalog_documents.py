"""The catalogs of the API agree with the catalogs that they list, entry by entry."""

from __future__ import annotations

import json
import math

import pytest

from catalogs.cli.describe import catalog_kind
from catalogs.errors import InputError
from catalogs.hardware.catalog import list_hardware, parse_hardware
from catalogs.models.catalog import list_models, load_model
from planner.problem.slo import parse_slos
from planner.web.documents import calibrations, catalogs
from planner.web.documents.question_form import PRESETS, Preset


def test_every_model_is_listed_once_with_its_own_size() -> None:
    found = {item["name"]: item for item in catalogs.models()}
    assert sorted(found) == list_models()
    for name, item in found.items():
        model = load_model(name)
        assert item["params"] == model.n_params
        assert 0 < item["active_params"] <= item["params"]
        assert item["attention"]
    json.dumps(list(found.values()), allow_nan=False)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("DeepSeek-V3 nvfp4", {"deepseek-v3-nvfp4"}),
        ("meta-llama/Llama-3.1-405B", {"llama3.1-405b"}),
        ("mamba-2", {"nemotron-3-nano-30b-a3b", "nemotron-h-56b", "nemotron-nano-12b-v2"}),
        ("no such model", set()),
    ],
)
def test_a_search_needs_every_word(search: str, found: set[str]) -> None:
    names = {item["name"] for item in catalogs.models(search)}
    assert found <= names
    assert bool(names) == bool(found)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_has_agents_where_its_workload_takes_them(preset: Preset) -> None:
    assert catalogs.workload_document(preset.workload)["takes_agents"] == (preset.agents is not None)
    assert [slo.text for slo in parse_slos(preset.slo)] == list(preset.slo)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama-2-7b", "MHA"),
        ("llama3.1-405b", "GQA"),
        ("deepseek-v3", "MLA"),
        ("gemma-3-27b", "GQA + sliding window of 1,024 tokens"),
        ("whisper-large-v3", "MHA + cross-attention"),
        ("qwen3.5-27b", "gated delta rule + GQA"),
    ],
)
def test_attention_in_words(model: str, words: str) -> None:
    assert catalogs.attention_words(load_model(model)) == words


def test_hardware_is_that_of_the_catalog_and_every_price_has_a_date_and_a_source() -> None:
    found = {item["name"]: item for item in catalogs.hardware()}
    assert sorted(found) == sorted(list_hardware())
    for name, item in found.items():
        assert item["memory_bytes"] == parse_hardware(name).accelerator.memory_bytes
        assert item["node_sizes"][-1] == parse_hardware(name).node.max_accelerators
        for price in (item["price"], item["node_price"]):
            if price is not None:
                assert price["date"]
                assert price["source"]
                assert price["usd_per_hour"] > 0
    assert found["h100"]["calibrated"] == "measured"
    assert (found["h100-nvl"]["calibrated"], found["h100-nvl"]["calibrated_on"]) == ("borrowed", "h100")
    assert found["t4"]["calibrated"] == "none"


def test_the_price_of_named_hardware_is_that_of_all_of_it() -> None:
    one, node = catalogs.hardware_document("h100"), catalogs.hardware_document("h100x8")
    assert node["accelerators"] == 8
    assert node["price"]["usd_per_hour"] > one["price"]["usd_per_hour"]


@pytest.mark.parametrize("kind", catalogs.TABLES)
def test_tables_have_the_rows_of_the_catalog_command(kind: str) -> None:
    assert catalogs.table_rows(kind) == catalog_kind(kind).rows()  # type: ignore[arg-type]


def test_calibrations_state_errors_for_every_family_of_every_accelerator() -> None:
    found = calibrations.calibrations()
    assert {item["name"] for item in found["items"]} == set(list_hardware())
    for item in found["items"]:
        assert all(0 < family["error"] < math.inf for family in item["families"])
        measured = [family for family in item["families"] if family["measured"]]
        assert bool(measured) == (item["calibrated"] != "none")
    assert {run["engine"] for run in found["whole_runs"]} >= {"vllm"}
    json.dumps(found, allow_nan=False)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError) as refused:
        calibrations.calibration("h10")
    assert refused.value.nearest == "h100"
