"""Requests with images on compiled deployments: latencies, totals and what is stated about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from catalogs.deployments.schema import Deployment, Multimodal
from catalogs.errors import InputError
from catalogs.models.catalog import load_model
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from simulator.analysis.metrics import summarise
from simulator.cli.main import main
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledDeployment, compile_deployment
from simulator.cluster.run import Run
from simulator.cluster.simulate import simulate
from simulator.core.batch import TowerWork
from simulator.costs.power_limit import CappedStepCost, PowerLimitedBoard

GEMMA, QWEN = "gemma-3-12b", "qwen2.5-vl-7b"


def compiled(model: str, hardware: str = "h100", tp: int = 1, how: str = "weights") -> CompiledDeployment:
    keys = {
        "model": model,
        "hardware": hardware,
        "tensor_parallel": tp,
        "multimodal": {"modalities": ["image"], "encoder_parallel": how},
    }
    return compile_deployment(Deployment.model_validate(keys))


DEPLOYED = compiled(QWEN)


def load(images: str | None, n: int = 20, rate: float = 2.0, model: str = QWEN, more: str = "") -> RequestSet:
    block = "" if images is None else f", images: {{{images}}}"
    found = load_workload(f"{{arrivals: {{poisson: {{}}}}, input_tokens: 200, output_tokens: 8{block}{more}}}")
    return found.for_model(load_model(model)).materialise(n_requests=n, requests_per_s=rate)


def serve(sent: RequestSet, deployed: CompiledDeployment = DEPLOYED) -> Run:
    return simulate(deployed, sent, RunOptions(check_invariants=True))


def alone(resolution: str, deployed: CompiledDeployment = DEPLOYED) -> float:
    return float(serve(load(f"per_request: 1, resolution: {resolution}", 1), deployed).ttft_s[0])


def test_a_single_request_waits_for_the_tower_and_for_its_longer_prompt() -> None:
    """Against text of the same length, its first token is later by exactly the encoding."""
    imaged = load("per_request: 1, resolution: 1024x1024", 1)
    text = replace(imaged, media=None)
    assert imaged.input_tokens.tolist() == [200 + 1371]
    later = serve(imaged).ttft_s[0] - serve(text).ttft_s[0]
    encoding = serve(imaged).replicas[0].logs[0]
    assert encoding.vision_patches.max() == 5476
    assert later == pytest.approx(DEPLOYED.cost.encoding_total_s(encoding), rel=1e-9)
    assert later > 0.005


def test_more_pixels_never_answer_sooner() -> None:
    times = [alone(f"{side}x{side}") for side in (100, 448, 900, 1400, 2800)]
    assert times == sorted(times)
    assert times[-1] > 5 * times[0]


def test_totals_hold_the_tower_and_metrics_count_it() -> None:
    sent = load("per_request: 2, resolution: 448x448")
    run, plain = serve(sent), serve(replace(sent, media=None))
    metrics = summarise(run)["metrics"]
    assert metrics["media"]["n_encoded"] == 40
    assert metrics["media"]["n_cache_hits"] == 0
    log = run.replicas[0].logs[0]
    totals, text = (DEPLOYED.cost.totals(each.replicas[0].logs[0]) for each in (run, plain))
    assert totals.busy_s == pytest.approx(float(log.total_s.sum()), rel=0.01)
    assert log.total_s[log.vision_units > 0].sum() > metrics["media"]["encoder_s"] > 0
    assert totals.busy_s - text.busy_s > 0.5 * metrics["media"]["encoder_s"]
    assert totals.joules_per_accelerator > text.joules_per_accelerator
    assert "media" not in summarise(serve(load(None)))["metrics"]


def test_images_that_repeat_are_found_in_the_cache_of_the_engine() -> None:
    many = "per_request: 1, resolution: 448x448"
    each, shared = (serve(load(f"{many}{more}", 60)) for more in ("", ", distinct: 3"))
    encoded, hits = shared.replicas[0].media or (0, 0)
    assert encoded == 3
    assert hits + encoded <= 60
    assert shared.cached_tokens.sum() > 0  # and their tokens in the prefix cache
    assert np.nanmean(shared.ttft_s) < np.nanmean(each.ttft_s)


def test_data_parallel_encoding_helps_where_images_are_many() -> None:
    """Four ranks: no all-reduce in the layers of the tower, but one image keeps one rank busy."""
    weights, data = (compiled(QWEN, "h100x4", 4, how) for how in ("weights", "data"))
    few, many = ("per_request: 1, resolution: 1792x1792", "per_request: 8, resolution: 448x448")
    ttft = {
        (name, images): float(serve(load(images, 1), deployed).ttft_s[0])
        for name, deployed in (("weights", weights), ("data", data))
        for images in (few, many)
    }
    assert ttft["data", many] < ttft["weights", many]
    assert ttft["data", few] > ttft["weights", few]


def test_a_power_limit_makes_the_tower_slower() -> None:
    sent = load("per_request: 1, resolution: 1400x1400", 4)
    limited = replace(DEPLOYED, cost=CappedStepCost(PowerLimitedBoard(DEPLOYED.cost, DEPLOYED.bundle), 350.0))
    assert (serve(sent, limited).ttft_s > serve(sent).ttft_s).all()


def test_gemma_resizes_every_image_alike() -> None:
    deployed = compiled(GEMMA)
    sent = [load(f"per_request: 1, resolution: {size}", 5, model=GEMMA) for size in ("300x300", "2000x1000")]
    a, b = (serve(each, deployed) for each in sent)
    assert a.last_token_s.tolist() == b.last_token_s.tolist()
    assert sent[0].input_tokens.tolist() == [460] * 5


def test_the_command_serves_images_without_further_options(tmp_path: Path) -> None:
    """`simulate` loads the tower because the workload sends images, and says what they became."""
    (tmp_path / "d.yaml").write_text(f"model: {GEMMA}\nhardware: h100\n", encoding="utf-8")
    out = tmp_path / "o.json"
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "d.yaml"), "--workload", "chat-with-images", "--requests", "30", "--json", str(out)])
    assert not ended.value.code
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["deployment"]["multimodal"] == {
        "modalities": ["image"],
        "encoder_parallel": "weights",
        "encoder_cache_tokens": None,
    }
    assert found["metrics"]["media"]["n_encoded"] == 30
    assert any("1024x1024 260" in notice for notice in found["notices"])


def test_what_is_not_simulated_says_so() -> None:
    with pytest.raises(InputError, match="serving of images, videos and audio is not simulated for trtllm"):
        compile_deployment(Deployment(model=QWEN, hardware="h100", engine="trtllm", multimodal=Multimodal()))
    omni = Deployment(model="qwen2.5-omni-7b", hardware="h100", engine="sglang", multimodal=Multimodal())
    with pytest.raises(InputError, match=r"sglang serves no \w+, which reads audio: got 'qwen2.5-omni-7b'; .* vllm"):
        compile_deployment(omni)
    with pytest.raises(InputError, match="the catalog knows no tower of this model"):
        compile_deployment(Deployment(model="llama3.1-8b", hardware="h100", multimodal=Multimodal()))
    text = compile_deployment(Deployment(model=QWEN, hardware="h100"))
    with pytest.raises(InputError, match=r"the deployment serves text only; .*multimodal"):
        serve(load("per_request: 1, resolution: 448x448", 1), text)


def test_sglang_serves_images_with_less_memory_for_blocks() -> None:
    """adjust_mem_fraction_for_vlm by hand: 24 layers of 1,280 are 1.5625 ViT-L/14, so 0.95 x (1 - 0.05625)."""
    keys = {"model": QWEN, "hardware": "h100", "engine": "sglang"}
    text = compile_deployment(Deployment.model_validate(keys)).resolved
    deployed = compile_deployment(Deployment.model_validate(keys | {"multimodal": {}}))
    share = deployed.resolved.gpu_memory_utilization / text.gpu_memory_utilization
    assert share == pytest.approx(0.95 * (1 - 0.05625), rel=1e-9)
    assert deployed.resolved.encoder_cache_tokens == int(100 * 2**20 / (3584 * 2))
    run = serve(load("per_request: 2, resolution: 1024x1024", 10), deployed)
    assert run.completed.all()
    assert run.replicas[0].media == (20, 0)


def test_audio_takes_its_own_tower() -> None:
    """Qwen2.5-Omni: images and audio in one request, each in its columns of the log."""
    block = "images: {per_request: 1, resolution: 448x448}, audio: {per_request: 1, seconds: 30}"
    found = load_workload(f"{{arrivals: {{poisson: {{}}}}, input_tokens: 50, output_tokens: 4, {block}}}")
    model = load_model("qwen2.5-omni-7b")
    keys = {"model": model.name, "hardware": "h100", "multimodal": {"modalities": ["image", "audio"]}}
    deployed = compile_deployment(Deployment.model_validate(keys))
    assert [tower.name for tower in deployed.resolved.towers] == ["vision", "audio"]
    run = serve(found.for_model(model).materialise(n_requests=3, requests_per_s=1.0), deployed)
    log = run.replicas[0].logs[0]
    assert log.vision_patches.sum() == 3 * 1024
    assert log.audio_patches.sum() == 3 * 1500
    towers = {tower.name: tower for tower in deployed.cost.tables.towers}
    patches = {"vision": 1024, "audio": 1500}
    alone_s = sum(towers[name].seconds(TowerWork(1, 1, n, float(n) ** 2)) for name, n in patches.items())
    assert deployed.cost.encoding_total_s(log) == pytest.approx(3 * alone_s, rel=0.2)
    assert summarise(run)["metrics"]["media"]["n_encoded"] == 6


def test_sglang_serves_audio_of_voxtral() -> None:
    """Two chunks of 30 s, 375 tokens each and one before them; encoded with the first chunk of the prompt."""
    model = load_model("voxtral-mini-3b")
    deployed = compile_deployment(
        Deployment(model=model.name, hardware="h100", engine="sglang", multimodal=Multimodal())
    )
    block = "{arrivals: {poisson: {}}, input_tokens: 50, output_tokens: 4, audio: {per_request: 1, seconds: 45}}"
    run = serve(load_workload(block).for_model(model).materialise(n_requests=3, requests_per_s=1.0), deployed)
    assert run.requests.input_tokens.tolist() == [50 + 751] * 3
    log = run.replicas[0].logs[0]
    assert log.audio_patches.sum() == 3 * 2 * 1500
    assert run.completed.all()
