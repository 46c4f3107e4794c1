"""Requests for models whose encoder reads the prompt: their engine, workload and start command without options."""

from __future__ import annotations

import json
import shlex

import pytest

from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.deployments.schema import Deployment
from catalogs.launch.command import serve_arguments, serve_command
from catalogs.workloads.workload import default_workload, load_workload
from planner.problem.request import PlanRequest
from planner.problem.scenario import command_of, keys_of, request_of_keys
from planner.problem.slo import parse_slos
from planner.space.candidates import candidates

SLOS = parse_slos(["e2e.p99=2s"])


def asked(model: str = "t5-small", hardware: str = "h100x8", **keys: object) -> PlanRequest:
    return PlanRequest(model=model, hardware=hardware, slos=SLOS, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "engine", "workload"),
    [
        ("t5-small", "trtllm", "news-summaries"),
        ("facebook/bart-large-cnn", "trtllm", "news-summaries"),
        ("whisper-large-v3", "vllm", "transcription"),
        ("llama3.1-8b", "vllm", "azure-conv"),
    ],
)
def test_a_request_needs_no_more_options(model: str, engine: str, workload: str) -> None:
    found = asked(model)
    assert (found.engine, found.workload) == (engine, workload)
    assert not {"engine", "workload"} & keys_of(found).keys()


def test_named_choices_are_kept_and_repeated() -> None:
    """Also those that are the usual ones of other models, which the command of most requests leaves out."""
    found = asked(workload="azure-conv", engine="trtllm")
    assert (found.engine, found.workload) == ("trtllm", "azure-conv")
    assert keys_of(found)["workload"] == "azure-conv"
    assert "--workload azure-conv" in command_of(found)
    assert request_of_keys(keys_of(found)) == found


@pytest.mark.parametrize("model", ["t5-small", "bart-base", "nllb-200-3.3b", "flan-t5-xxl"])
def test_the_workload_of_a_model_fits_its_positions(model: str) -> None:
    resolved = resolve(Deployment(model=model, hardware="h100x8"))
    drawn = load_workload(default_workload(model)).materialise(0, 2000, 1.0)
    assert max(int(drawn.input_tokens.max()), int(drawn.output_tokens.max())) <= resolved.side_tokens


def test_transcripts_fit_the_decoder_of_whisper() -> None:
    resolved = resolve(Deployment(model="whisper-large-v3", hardware="h100"))
    drawn = load_workload(default_workload("whisper-large-v3")).materialise(0, 2000, 1.0)
    assert int((drawn.input_tokens + drawn.output_tokens).max()) <= resolved.limits.max_model_len == 448


def test_trtllm_serve_has_the_options_of_an_encoder_decoder() -> None:
    made = serve_arguments(resolve(Deployment(model="bart-base", hardware="h100x2", tensor_parallel=2)))
    assert made.words[:2] == ["trtllm-serve", "facebook/bart-base"]
    flags = dict(made.flags)
    assert (flags["--tp_size"], flags["--max_seq_len"], flags["--backend"]) == ("2", "2048", "pytorch")
    config = json.loads(made.notes[0].partition(": ")[2].rpartition(" (")[0])
    assert config["kv_cache_config"] == {
        "enable_block_reuse": False,
        "cross_kv_cache_fraction": 0.5,
        "use_kv_cache_manager_v2": False,
    }
    assert (config["max_input_len"], config["enable_chunked_prefill"]) == (1024, False)


def test_padded_batches_have_a_server_of_this_product() -> None:
    keys = {"engine": "transformers-static", "max_num_seqs": 16, "weight_dtype": "fp32"}
    made = serve_arguments(resolve(Deployment.model_validate({"model": "t5-small", "hardware": "local", **keys})))
    assert made.words[:5] == ["python3", "-m", "calibration.serve.batch_server", "--model", "google-t5/t5-small"]
    flags = dict(made.flags)
    assert (flags["--max-batch-size"], flags["--dtype"], flags["--device"]) == ("16", "float32", "cpu")


def test_batch_sizes_are_searched_on_one_accelerator_each() -> None:
    request = asked("nllb-200-3.3b")
    names = CatalogLookup.of(request.model, request.engine, request.hardware)
    found = candidates(request, names)
    assert {c.max_num_seqs for c in found} == {1, 2, 4, 8, 16, 32, 64, 128}
    assert {c.layout.accelerators for c in found} == {1}
    assert {c.weight_dtype for c in found} == {"bf16"}


def test_trtllm_serve_of_a_decoder_has_none_of_them() -> None:
    found = serve_command(resolve(Deployment(model="llama3.1-8b", hardware="h100x1", engine="trtllm")))
    assert shlex.split(found.command)[:2] == ["trtllm-serve", "meta-llama/Llama-3.1-8B"]
    assert "cross_kv_cache_fraction" not in " ".join(found.notes)
