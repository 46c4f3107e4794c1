"""Encoder pools: whole timelines by hand, the laws of any run with one, and deployments that name one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.resolution.encoder_pools import embedding_bytes
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.launch.command import serve_arguments
from catalogs.models.catalog import load_model
from catalogs.units import GIGA
from catalogs.workloads.request_set import RequestSet
from catalogs.workloads.workload import load_workload
from simulator.analysis.complexity import latency_records
from simulator.analysis.metrics import fleet_metrics, latency_metrics, summarise
from simulator.analysis.request_phases import PHASES, phases
from simulator.cache.encoder_cache import EncoderLimits
from simulator.cli.main import main
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import CompiledFleet, Pool, compile_deployment, compile_fleet
from simulator.cluster.kv_transfer import TransferLinks
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools
from simulator.cluster.simulate import simulate as run_fleet
from simulator.cluster.transfer_paths import EmbeddingPath
from simulator.core.outcomes import QUEUE_FULL
from simulator.engine.event_log import EventLog
from tests.simulator.cluster.test_pools import Script, Wire
from tests.simulator.schedulers.test_media_batches import Seeing, imaged
from tests.simulator.worlds import Linear, requests, rules

QWEN = "qwen2.5-vl-7b"

#: A step of an encoder replica takes 0.25 s, 0.5 s for each image, and 1/64 s for each patch: 1.25 s for a small image
#: of 32 patches and 8 embeddings, 1.75 s for a large one of 64 patches and 16 embeddings.
TOWERS = Seeing(base_s=0.25)

#: 1/8 s for each embedding, and 0.5 s until they are usable.
WIRE = Wire(token_s=0.125, latency_s=0.5)


def encoders(n: int = 1, **changes: object) -> Pool:
    limits = EncoderLimits(64, 64, rejects=changes.get("policy") != "sglang", where="only here")
    return Pool(rules(encoder_limits=limits, prefix_caching=False, **changes), TOWERS, n, "encode")


def language(n: int = 1, role: str = "both", **changes: object) -> Pool:
    limits = EncoderLimits(64, 64, rejects=changes.get("policy") != "sglang", where="elsewhere")
    return Pool(rules(encoder_limits=limits, **changes), Linear(), n, role)  # type: ignore[arg-type]


def links(pools: list[Pool]) -> TransferLinks:
    roles = [pool.role for pool in pools]
    pairs = {(i, j) for i, a in enumerate(roles) for j, b in enumerate(roles) if a == "encode" and b != "encode"}
    pairs |= {(i, j) for i, a in enumerate(roles) for j, b in enumerate(roles) if (a, b) == ("prefill", "decode")}
    return TransferLinks(dict.fromkeys(pairs, WIRE))


def simulate(pools: list[Pool], work: RequestSet, **options: object) -> Run:
    values = {"transfer": links(pools), "event_log": EventLog(), "check_invariants": True} | options
    return run_pools(pools, work, RunOptions(**values))  # type: ignore[arg-type]


def life(run: Run, request: int = 0) -> dict[str, float]:
    """The phases of one request that took time."""
    seconds = phases(run).e2e_s[request]
    return {name: float(s) for name, s in zip(PHASES, seconds, strict=True) if s}


# ---- timelines by hand


def test_an_image_is_encoded_elsewhere_and_its_embeddings_travel() -> None:
    """Encoded 0..1.25, eight embeddings on the wire until 2.25 and usable at 2.75, then the prompt 2.75..3.75."""
    run = simulate([encoders(), language()], imaged(requests([0.0], [20], [3]), [[0]]))
    assert run.encodings.tolist() == [[0.0, 0.0, 1.0, 0.0, 0.0, 1.25, 2.75, 8.0]]
    assert (run.first_token_s.tolist(), run.last_token_s.tolist()) == ([3.75], [5.75])
    assert (run.started_s.tolist(), run.replica.tolist()) == ([2.75], [1])
    towers, model = run.logs
    assert (towers.vision_patches.tolist(), towers.logits.tolist()) == ([32.0], [0.0])
    assert not model.vision_patches.any()
    assert model.prefill_tokens[0] == 20
    assert [replica.media for replica in run.replicas] == [(1, 0), None]
    assert life(run) == {"encode": 1.25, "embeddings": 1.5, "prefill": 1.0, "decode": 2.0}
    parts = {name: float(s[0]) for name, s in latency_records(run).parts.items() if s[0]}
    assert parts == {"encode": 2.75, "prefill": 1.0, "decode": 2.0}
    found = latency_metrics(run)["encoder_pool"]
    assert (found["n_requests"], found["n_embeddings"]) == (1, 8)
    means = [found[name]["mean"] for name in ("wait_s", "encode_s", "transfer_s")]
    assert means == [0.0, 1.25, 1.5]
    assert latency_metrics(run)["media"]["n_encoded"] == 1


def test_text_passes_no_encoder_and_is_served_as_without_one() -> None:
    work = requests([0.0, 0.5, 3.0], [20, 40, 8], [3, 5, 1])
    run = simulate([encoders(), language()], imaged(work, [[], [], []]))
    alone = run_pools([Pool(rules(), Linear())], work)
    assert not len(run.encodings)
    assert run.last_token_s.tolist() == alone.last_token_s.tolist()
    assert not len(run.logs[0])


def test_requests_wait_for_the_encoder_and_text_passes_them() -> None:
    """The large image takes the encoder until 1.75; the small one, at 0.5, is encoded 1.75..3.0. Text at 0.5 is not."""
    work = imaged(requests([0.0, 0.5, 0.5], [20, 20, 20], [2, 2, 2]), [[1], [0], []])
    run = simulate([encoders(), language()], work)
    assert run.encodings[:, 3:6].tolist() == [[0.0, 0.0, 1.75], [0.5, 1.75, 3.0]]
    assert run.first_token_s[2] == 1.5
    behind = run.started_s[1] - run.encodings[1, 6]  # a step of the language model runs when its embeddings arrive
    assert life(run, 1)["wait_step"] == 1.25 + behind


def test_two_encoders_take_turns() -> None:
    work = imaged(requests([0.0, 0.0], [20, 20], [1, 1]), [[0], [0]])
    run = simulate([encoders(2), language()], work)
    assert run.encodings[:, 1].tolist() == [0.0, 1.0]
    assert run.encodings[:, 5].tolist() == [1.25, 1.25]
    assert run.encodings[:, 6].tolist() == [3.75, 3.75]  # both on the inbound link of the one receiver: 2 s, and 0.5


def test_an_encoder_keeps_what_it_has_encoded() -> None:
    """The second request has the first one's image: a step without encoding, 0.25 s."""
    work = imaged(requests([0.0, 5.0], [20, 20], [1, 1]), [[0], [0]], [[7], [7]])
    run = simulate([encoders(), language()], work)
    assert run.encodings[:, 4:6].tolist() == [[0.0, 1.25], [5.0, 5.25]]
    assert run.replicas[0].media == (1, 1)


def test_encode_prefill_decode() -> None:
    """Embeddings arrive at 2.75, the prompt takes until 3.75, its 20 tokens 2.5 s on the wire and 0.5 more."""
    pools = [encoders(), language(role="prefill"), language(role="decode")]
    run = simulate(pools, imaged(requests([0.0], [20], [3]), [[0]]))
    assert run.handovers.tolist() == [[0.0, 1.0, 2.0, 3.75, 6.75]]
    assert run.first_token_s.tolist() == [3.75]
    assert run.last_token_s.tolist() == [8.75]
    assert life(run) == {"encode": 1.25, "embeddings": 1.5, "prefill": 1.0, "transfer": 3.0, "decode": 2.0}


def test_sglangs_loop_encodes_a_number_of_requests_at_once() -> None:
    """Two at a time: 0.25 + 2 x 1.0 s for two small images."""
    work = imaged(requests([0.0] * 5, [20] * 5, [1] * 5), [[0]] * 5)
    pool = encoders(policy="sglang", max_num_seqs=2, max_num_batched_tokens=8192)
    run = simulate([pool, language(policy="sglang", max_num_batched_tokens=8192)], work)
    assert run.encodings[:, 5].tolist() == [2.25, 2.25, 4.5, 4.5, 5.75]
    assert run.logs[0].vision_units.tolist() == [2.0, 2.0, 1.0]
    assert not run.logs[1].vision_units.any()


def test_a_request_whose_encoder_fails_passes_another_one() -> None:
    """The encoder fails at 1, during the first encoding; the other one, added at 2, encodes the image 2..3.25."""

    def crash(cluster: Cluster) -> None:
        cluster.timetable.at(1.0, lambda: cluster.fail(cluster.replicas[0]))
        cluster.timetable.at(2.0, lambda: cluster.add_replica(0) and None)

    work = imaged(requests([0.0, 0.0], [20, 20], [1, 1]), [[0], []])
    run = simulate([encoders(), language()], work, controllers=(Script(crash),))
    assert run.encodings[:, :6].tolist() == [[0.0, 2.0, 1.0, 2.0, 2.0, 3.25]]
    assert run.completed.all()
    assert run.first_token_s[1] == 1.0  # text does not need the encoder


def test_a_language_replica_that_fails_while_embeddings_travel() -> None:
    """It fails at 2, before the embeddings arrive at 2.75: the request is encoded again, from its first replica on."""

    def crash(cluster: Cluster) -> None:
        cluster.timetable.at(2.0, lambda: cluster.fail(cluster.replicas[1]))
        cluster.timetable.at(2.5, lambda: cluster.add_replica(1) and None)

    run = simulate([encoders(), language()], imaged(requests([0.0], [20], [1]), [[0]]), controllers=(Script(crash),))
    assert run.restarts == 1
    assert run.encodings[:, 2].tolist() == [1.0, 2.0]
    assert run.encodings[:, 5].tolist() == [1.25, 3.0]  # the second time from the cache of the encoder
    assert run.completed.all()


def test_a_full_queue_behind_the_encoders_rejects() -> None:
    from catalogs.deployments.queueing import Queueing

    short = Queueing(max_waiting=1)
    work = imaged(requests([0.0] * 6, [60] * 6, [9] * 6), [[0]] * 6)
    run = simulate([encoders(6), language(max_num_seqs=1, queueing=short)], work)
    assert (run.status == QUEUE_FULL).sum() > 0
    assert (run.completed | (run.status == QUEUE_FULL)).all()


# ---- laws


@st.composite
def mixed(draw: st.DrawFn) -> RequestSet:
    n = draw(st.integers(1, 12))
    arrivals = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=n, max_size=n)))
    kinds = draw(st.lists(st.lists(st.integers(0, 1), max_size=3), min_size=n, max_size=n))
    contents = [[draw(st.integers(0, 5)) * 2 + kind for kind in each] for each in kinds]
    text = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    inputs = [t + sum(16 if kind else 8 for kind in each) for t, each in zip(text, kinds, strict=True)]
    outputs = draw(st.lists(st.integers(1, 8), min_size=n, max_size=n))
    return imaged(requests(arrivals.tolist(), inputs, outputs), kinds, contents)


@settings(max_examples=40, deadline=None)
@given(
    mixed(), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.sampled_from(["vllm-v1", "sglang"]), st.booleans()
)
def test_any_run_keeps_the_laws(
    work: RequestSet, n_encoders: int, n_language: int, split: bool, policy: str, ahead: bool
) -> None:
    """Requests with items pass one encoder each, others none; all end; the phases of each add up to its latency."""
    keys: dict[str, object] = {"policy": policy, "lag": int(ahead)}
    budget = {"max_num_batched_tokens": 256} if policy == "sglang" else {}
    roles = ["prefill", "decode"] if split else ["both"]
    pools = [encoders(n_encoders, **keys | budget), *(language(n_language, role, **keys) for role in roles)]
    run = simulate(pools, work)
    assert work.media is not None
    assert run.completed.all()
    assert sorted(run.encodings[:, 0].tolist()) == np.flatnonzero(work.media.counts).tolist()
    each = {i: sum(item.layout.embeddings for item in work.media.of_request(i)) for i in range(work.n)}
    assert all(each[int(row[0])] == row[7] for row in run.encodings)
    np.testing.assert_allclose(phases(run).e2e_s.sum(axis=1), run.e2e_s, rtol=0, atol=1e-9)
    np.testing.assert_allclose(sum(latency_records(run).parts.values()), run.e2e_s, rtol=0, atol=1e-9)
    encoded = sum(replica.media[0] + replica.media[1] for replica in run.replicas if replica.media)
    assert encoded <= int(work.media.counts.sum())
    assert sum(int(log.emitted.sum()) for log in run.logs) >= int(work.output_tokens.sum())


# ---- deployments


def deployment(hardware: str = "h100x2", encode: dict[str, object] | None = None, **keys: object) -> Deployment:
    pool = {"replicas": 1, "encode": encode or {}}
    written = {"model": QWEN, "hardware": hardware, "multimodal": {"modalities": ["image"]}, "encoder_pool": pool}
    return validate_as(Deployment, written | keys, "deployment")


def load(n: int = 20, rate: float = 4.0, images: str = "per_request: 1, resolution: 1024x1024") -> RequestSet:
    block = f"{{arrivals: {{poisson: {{}}}}, input_tokens: 200, output_tokens: 8, images: {{{images}}}}}"
    return load_workload(block).for_model(load_model(QWEN)).materialise(n_requests=n, requests_per_s=rate)


FLEET = compile_fleet(deployment())


def served(fleet: CompiledFleet = FLEET, n: int = 20) -> Run:
    return run_fleet(fleet, load(n), RunOptions(check_invariants=True))


def test_alone_the_way_over_an_encoder_adds_the_transfer_and_one_start_of_a_step() -> None:
    """Both engines are idle, so each of them prepares one step that nothing hides. The embeddings are 9.8 MB."""
    together = compile_deployment(deployment("h100").model_copy(update={"encoder_pool": None}))
    run, plain = served(n=1), run_fleet(together, load(1), RunOptions(check_invariants=True))
    _, _, _, _, _, encoded_s, arrived_s, embeddings = run.encodings[0]
    assert embeddings == 1369
    host = together.resolved.engine.host
    later = float(run.ttft_s[0] - plain.ttft_s[0])
    assert later == pytest.approx(arrived_s - encoded_s + host.step_s + host.step_s_per_sequence, rel=1e-6)
    path = EmbeddingPath.between(*FLEET.deployments, FLEET)
    size = float(embeddings) * 3584 * 2
    rate = FLEET.deployments[0].resolved.hardware.node.link_bytes_per_s
    assert arrived_s - encoded_s == pytest.approx(size / rate + path.latency_s, rel=1e-9)


def test_a_given_rate_replaces_the_links() -> None:
    slow = compile_fleet(deployment(encoder_pool={"replicas": 1, "transfer_gb_per_s": 0.1}))
    run = served(slow, 1)
    size = run.encodings[0, 7] * embedding_bytes(slow.deployments[0].resolved)
    assert run.encodings[0, 6] - run.encodings[0, 5] == pytest.approx(size / (0.1 * GIGA), rel=1e-3)


def test_weights_are_those_of_the_towers_or_of_the_language_model() -> None:
    whole = compile_deployment(deployment("h100").model_copy(update={"encoder_pool": None})).memory
    towers, model = (compiled.memory for compiled in FLEET.deployments)
    tower = load_model(QWEN).other_params * 2
    assert towers.weights_bytes == pytest.approx(tower)
    assert model.weights_bytes + towers.weights_bytes == pytest.approx(whole.weights_bytes)
    assert model.kv_blocks > whole.kv_blocks
    assert towers.kv_bytes == 0.0
    assert "no KV cache" in towers.equation


def test_metrics_energy_and_accelerator_hours_hold_both_pools() -> None:
    run = served()
    found = summarise(run)["metrics"] | fleet_metrics(run)
    assert (found["n_completed"], found["media"]["n_encoded"], found["encoder_pool"]["n_requests"]) == (20, 20, 20)
    assert found["accelerator_hours"] == pytest.approx(2 * found["duration_s"] / 3600.0)
    assert [pool["n_completed"] for pool in found["pools"]] == [20, 20]
    towers = FLEET.deployments[0]
    log = run.replicas[0].logs[0]
    assert found["media"]["encoder_s"] == pytest.approx(towers.cost.encoding_total_s(log))
    totals = towers.cost.totals(log)
    assert totals.busy_s == pytest.approx(float(log.total_s.sum()), rel=1e-3)
    assert totals.joules_per_accelerator > totals.idle_w * totals.busy_s
    assert found["output_tokens_per_s"] * found["duration_s"] == pytest.approx(20 * 8)


def test_a_pool_on_hardware_of_its_own_crosses_the_network() -> None:
    apart = compile_fleet(deployment("h100", {"hardware": "l40s"}))
    assert [compiled.resolved.site for compiled in apart.deployments] == ["encode", ""]
    near, far = served(n=1), served(apart, 1)
    assert far.encodings[0, 6] - far.encodings[0, 5] > near.encodings[0, 6] - near.encodings[0, 5]


def test_qwen3_vl_sends_the_embeddings_of_several_layers() -> None:
    keys = {"model": "qwen3-vl-8b", "hardware": "h100x2"}
    found = compile_fleet(deployment(**keys)).deployments[0].resolved
    assert embedding_bytes(found) == 4 * 4096 * 2  # its last layer and three layers of DeepStack


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", (("ec_producer", "--enforce-eager"), ("ec_consumer", '{"image": 0, "video": 0}'))),
        ("sglang", (("--encoder-only",), ("--language-only",))),
    ],
)
def test_start_commands(engine: str, flags: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    fleet = compile_fleet(deployment(engine=engine))
    for compiled, expected in zip(fleet.deployments, flags, strict=True):
        text = serve_arguments(compiled.resolved).text
        assert all(each in text for each in expected), text


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"engine": "trtllm"}, "images, videos and audio is not simulated for trtllm"),
        ({"engine": "vllm-0.11"}, "vllm 0.11 has no server that only encodes"),
        ({"encode": {"tensor_parallel": 2}, "hardware": "h100x4"}, "each encoder replica of vllm is one accelerator"),
        ({"encode": {"kv_blocks": 2}}, "cannot set this key: encoder_pool.encode: got 'kv_blocks'"),
        ({"hardware": "h100"}, "the pools together must fit in the 1 of h100"),
        ({"model": "llama3.1-8b"}, "the catalog knows no tower of this model"),
        ({"pools": [{"replicas": 1}]}, "pools and encoder_pool cannot be combined"),
    ],
)
def test_what_cannot_be_says_so(keys: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        compile_fleet(deployment(**keys))  # type: ignore[arg-type]


def test_the_command_shows_both_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = {"model": QWEN, "hardware": "h100x2", "encoder_pool": {"replicas": 1}}
    (tmp_path / "d.yaml").write_text(json.dumps(written), encoding="utf-8")
    out = tmp_path / "o.json"
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "d.yaml"), "--workload", "chat-with-images", "--requests", "30", "--json", str(out)])
    assert not ended.value.code
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["deployment"]["encoder_pool"]["encode"]["hardware"] == "h100x2"
    assert found["deployment"]["disaggregation"] is None
    assert found["metrics"]["encoder_pool"]["n_requests"] == 30
    screen = capsys.readouterr().out
    assert "encode: qwen2.5-vl-7b" in screen
    assert "encoder pool: 30 requests encoded; on average" in screen


def test_the_same_fleet_without_items_leaves_its_encoders_idle() -> None:
    text = replace(load(), media=None)
    run = run_fleet(FLEET, text, RunOptions(check_invariants=True))
    assert run.completed.all()
    assert not len(run.logs[0])
