"""Hand-over from prefill to decode: timelines by hand for each engine's way, links that are shared, bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import latency_metrics
from simulator.cluster.cluster import RunOptions
from simulator.cluster.compiled import CompiledFleet, Pool, compile_deployment, compile_fleet
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.kv_transfer import LinkLoad, TransferLinks, TransferPath
from simulator.cluster.run import Run
from simulator.cluster.simulate import engine_rules, run_pools
from simulator.cluster.simulate import simulate as run
from simulator.cluster.transfer_paths import RankPath, card_links, transfer_links
from simulator.schedulers.rules import EngineRules
from tests.simulator.worlds import Linear, requests, rules


@dataclass(frozen=True)
class Wire:
    """A path with a time for each token."""

    token_s: float = 0.25
    latency_s: float = 0.5
    parts: int = 1

    def pieces(self, tokens: int) -> int:  # noqa: ARG002 - as many for all
        return self.parts

    def load(self, tokens: int) -> LinkLoad:
        wire_s = self.token_s * tokens
        return LinkLoad(wire_s, wire_s, wire_s)


def ports(path: TransferPath = Wire()) -> TransferLinks:
    return TransferLinks({(0, 1): path})


def simulate(
    work: RequestSet,
    how: DisaggregationPolicy,
    transfer: TransferLinks | None = None,
    fast: bool = True,
    counts: tuple[int, int] = (1, 1),
    timer: Linear = Linear(),  # noqa: B008
    **changes: object,
) -> Run:
    pools = [
        Pool(rules(**changes), timer, counts[0], "prefill"),
        Pool(rules(), timer, counts[1], "decode"),
    ]
    return run_pools(
        pools, work, RunOptions(check_invariants=True, transfer=transfer or ports(), hand_over=how, fast_forward=fast)
    )


@pytest.mark.parametrize("fast", [True, False])
def test_the_decode_replica_computes_the_first_token_where_vllm_does(fast: bool) -> None:
    """Prompt 0..1, four tokens on the wire 1..2, seen at 2.5; there the last prompt token runs again: 2.5..3.5."""
    done = simulate(requests([0.0], [4], [3]), DisaggregationPolicy("decode"), fast=fast)
    assert (done.first_token_s.tolist(), done.last_token_s.tolist()) == ([3.5], [5.5])
    _, decode = done.logs
    assert (decode.context_sum[0], decode.start_s[0], decode.decodes.max()) == (3, 2.5, 1)
    assert done.openings_s.tolist() == [1.0]
    assert latency_metrics(done)["itl_s"]["mean"] == 1.0  # two gaps of one step: the first token ends none


@pytest.mark.parametrize("fast", [True, False])
def test_the_prefill_replicas_token_is_seen_when_the_decode_replica_schedules_it(fast: bool) -> None:
    done = simulate(requests([0.0], [4], [3]), DisaggregationPolicy("admission"), fast=fast)
    assert (done.first_token_s.tolist(), done.last_token_s.tolist()) == ([2.5], [4.5])
    assert done.waits_s.tolist() == [[1.0, 0.0]]
    assert latency_metrics(done)["itl_s"]["mean"] == 1.0


@pytest.mark.parametrize("fast", [True, False])
def test_a_token_waits_for_a_seat_where_it_is_seen_at_admission(fast: bool) -> None:
    """Both prompts are computed in the first second, and their blocks share the wire until 3.5. The first request has
    the one seat of the decode replica from then until its seventh token at 9.5."""
    pools = [Pool(rules(), Linear(), 1, "prefill"), Pool(rules(max_num_seqs=1), Linear(), 1, "decode")]
    options = RunOptions(
        check_invariants=True, transfer=ports(), hand_over=DisaggregationPolicy("admission"), fast_forward=fast
    )
    done = run_pools(pools, requests([0.0, 0.0], [4, 4], [7, 3]), options)
    assert done.handovers[:, 4].tolist() == [3.5, 3.5]
    assert done.first_token_s.tolist() == [3.5, 9.5]
    assert done.last_token_s.tolist() == [9.5, 11.5]


@pytest.mark.parametrize("fast", [True, False])
def test_a_token_waits_for_the_step_in_flight(fast: bool) -> None:
    """Steps of 1 s: the first request decodes in steps 2.5..3.5 and so on. The second prompt takes 1.25..2.25 and its
    blocks arrive at 3.75. It is scheduled when the step in flight ends at 4.5; one step later where steps are
    scheduled ahead, although its token is seen when it is scheduled."""
    for lag, first_s, last_s in ((0, 4.5, 5.5), (1, 4.5, 6.5)):
        pools = [Pool(rules(), Linear(), 1, "prefill"), Pool(rules(lag=lag), Linear(), 1, "decode")]
        options = RunOptions(
            check_invariants=True, transfer=ports(), hand_over=DisaggregationPolicy("admission"), fast_forward=fast
        )
        done = run_pools(pools, requests([0.0, 1.25], [4, 4], [9, 2]), options)
        assert (done.first_token_s[1], done.last_token_s[1]) == (first_s, last_s)


def test_one_token_is_computed_there_too_where_the_first_is() -> None:
    done = simulate(requests([0.0, 0.0], [4, 1], [1, 1]), DisaggregationPolicy("decode"))
    assert len(done.handovers) == 2
    assert (done.first_token_s == done.last_token_s).all()
    assert done.last_token_s.tolist() == [4.0, 3.0]  # a token each until 1.5, there at 2; the other three at 2.75


@pytest.mark.parametrize(("token_s", "seen_s"), [(0.25, 1.75), (0.0625, 1.5625), (1.0, 4.75)])
def test_layers_leave_as_they_are_computed(token_s: float, seen_s: float) -> None:
    """Four layers, done at 0.25, 0.5, 0.75 and 1. A slow wire starts at 0.25 and never waits again; a quick one waits
    for the last layer, a quarter of the bytes."""
    done = simulate(requests([0.0], [4], [2]), DisaggregationPolicy(), ports(Wire(token_s, 0.5, 4)))
    assert done.handovers[:, 4].tolist() == [seen_s]


def test_layers_leave_when_the_wire_is_free() -> None:
    """Two prompts in one step: the first's layers had the wire so far. Its last takes twice as long beside the other,
    which has a quarter sent by then."""
    done = simulate(requests([0.0, 0.0], [4, 4], [2, 2]), DisaggregationPolicy(), ports(Wire(0.25, 0.0, 4)))
    assert done.handovers[:, 4].tolist() == [1.5, 2.25]


def test_a_seat_is_free_when_the_prompt_is_done_and_blocks_when_they_have_arrived() -> None:
    """vLLM: the request has finished there, its blocks are freed later. One seat: the second prompt runs at 1."""
    done = simulate(requests([0.0, 0.0], [4, 4], [2, 2]), DisaggregationPolicy(), max_num_seqs=1)
    assert done.first_token_s.tolist() == [1.0, 2.0]
    done = simulate(requests([0.0, 0.0], [4, 4], [2, 2]), DisaggregationPolicy(), max_num_seqs=1, kv_blocks=1)
    assert done.first_token_s.tolist() == [1.0, 3.5]


def test_short_prompts_stay() -> None:
    done = simulate(
        requests([0.0, 0.0, 0.0], [4, 5, 30], [3, 3, 3]), DisaggregationPolicy("decode", max_local_tokens=4)
    )
    assert done.handovers[:, 0].tolist() == [1.0, 2.0]
    assert done.first_token_s[0] == 1.0  # computed where it decodes
    assert done.replica.tolist() == [1, 1, 1]


def test_prompts_stay_while_prefill_queues_are_full() -> None:
    """One seat and 64 tokens a step: the first runs, the second waits, the third finds it waiting."""
    work = requests([0.0, 0.25, 0.5], [64, 64, 64], [2, 2, 2])
    done = simulate(work, DisaggregationPolicy(max_queue=1), max_num_seqs=1)
    assert done.handovers[:, 0].tolist() == [0.0, 1.0]
    assert done.first_token_s[2] == 1.5


def test_replicas_share_a_card() -> None:
    """Two prefill replicas, each with its own receiver: 4 tokens take a second; both at once through one card, two."""
    work = requests([0.0, 0.0], [4, 4], [2, 2])
    alone = simulate(work, DisaggregationPolicy(), ports(), counts=(2, 2))
    assert alone.handovers[:, 4].tolist() == [2.5, 2.5]
    shared = TransferLinks({(0, 1): Wire()}, lambda replica: ("card",) if replica.pool == 0 else (replica.index,))
    together = simulate(work, DisaggregationPolicy(), shared, counts=(2, 2))
    assert together.handovers[:, 4].tolist() == [3.5, 3.5]


@st.composite
def workloads(draw: st.DrawFn) -> RequestSet:
    n = draw(st.integers(1, 12))
    arrivals = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=n, max_size=n)))
    inputs = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    return requests(arrivals.tolist(), inputs, outputs)


@settings(max_examples=60, deadline=None)
@given(
    workloads(),
    st.sampled_from(["prefill", "admission", "decode"]),
    st.sampled_from([0, 20]),
    st.sampled_from([(1, 0), (4, 0), (4, 1)]),
    st.sampled_from([2.0**-6, 0.25]),
    st.sampled_from([None, 1, 2]),
)
def test_laws_hold_and_fast_forward_is_exact(
    work: RequestSet, first: str, local: int, how_sent: tuple[int, int], token_s: float, queues: int | None
) -> None:
    """Also where many are under way at once."""
    pieces, lag = how_sent
    timer = Linear(base_s=0.25, decode_s=0.125, prompt_token_s=0.0625, context_s=2.0**-10, segment_steps=7)
    how = DisaggregationPolicy(first, local)  # type: ignore[arg-type]
    runs = [
        simulate(
            work, how, TransferLinks({(0, 1): Wire(token_s, 0.0, pieces)}, queues=queues), fast, (2, 2), timer, lag=lag
        )
        for fast in (True, False)
    ]
    fast_run, slow_run = runs
    for name in ("first_token_s", "last_token_s", "started_s"):
        np.testing.assert_allclose(getattr(fast_run, name), getattr(slow_run, name), rtol=0, atol=1e-9)
    for done in runs:
        assert done.completed.all()
        several = work.output_tokens > 1
        assert (done.last_token_s[several] > done.first_token_s[several]).all()
        itl = latency_metrics(done)["itl_s"]["mean"]
        apart = not local and work.input_tokens.min() > 1  # no prompt is computed where others decode
        if itl is not None and apart:  # all gaps together are the time from first to last tokens
            gaps = (work.output_tokens - 1).sum()
            assert itl * gaps == pytest.approx((done.last_token_s - done.first_token_s).sum())


@settings(max_examples=60, deadline=None)
@given(
    workloads(),
    st.sampled_from([("sglang", "admission"), ("trtllm", "admission"), ("vllm-v1", "decode")]),
    st.sampled_from([0, 20]),
    st.sampled_from([40, 1000]),
)
def test_schedulers_take_over_as_their_engines_do(
    work: RequestSet, engine: tuple[str, str], local: int, blocks: int
) -> None:
    timer = Linear(base_s=0.25, decode_s=0.125, prompt_token_s=0.0625, context_s=2.0**-10, segment_steps=7)
    policy, first = engine
    own = rules(policy=policy, kv_blocks=blocks, max_num_seqs=4)
    pools = [Pool(own, timer, 1, "prefill"), Pool(own, timer, 2, "decode")]
    runs = [
        run_pools(
            pools,
            work,
            RunOptions(
                check_invariants=True,
                transfer=ports(Wire(2.0**-6, 0.0)),
                hand_over=DisaggregationPolicy(first, local),  # type: ignore[arg-type]
                fast_forward=fast,
            ),
        )
        for fast in (True, False)
    ]
    for name in ("first_token_s", "last_token_s", "started_s"):
        np.testing.assert_allclose(getattr(runs[0], name), getattr(runs[1], name), rtol=0, atol=1e-9)
    assert runs[0].completed.all()


@settings(max_examples=40, deadline=None)
@given(workloads(), st.sampled_from(["prefill", "decode"]))
def test_free_transfer_is_no_quicker_than_a_single_request(work: RequestSet, first: str) -> None:
    """The lower bound: every request as if alone, on a prefill and a decode replica of its own."""
    timer = Linear(base_s=0.25, prompt_token_s=0.125)
    done = simulate(work, DisaggregationPolicy(first), ports(Wire(0.0, 0.0)), timer=timer)  # type: ignore[arg-type]
    prompt_s = 0.25 + 0.125 * work.input_tokens
    again = first == "decode"
    assert (done.ttft_s >= prompt_s + 0.25 * again - 1e-9).all()
    assert (done.e2e_s >= prompt_s + 0.25 * (work.output_tokens - 1 + again) - 1e-9).all()


def test_more_replicas_where_the_work_is_serve_it_sooner() -> None:
    """Long prompts, few tokens: of four replicas, more of them for prompts; the other way round for long outputs."""
    timer = Linear(base_s=0.25, prompt_token_s=0.0625, decode_s=0.125)
    n = 40

    def ends(inputs: int, outputs: int) -> list[float]:
        work = requests((0.5 * np.arange(n)).tolist(), [inputs] * n, [outputs] * n)
        sweeps = [
            simulate(work, DisaggregationPolicy(), ports(Wire(0.0, 0.0)), counts=(p, 4 - p), timer=timer)
            for p in (1, 2, 3)
        ]
        return [float(done.e2e_s.mean()) for done in sweeps]

    prompts, outputs = ends(60, 2), ends(4, 30)
    assert prompts[0] > prompts[1] > prompts[2]
    assert outputs[0] < outputs[1] < outputs[2]


# ---- with compiled deployments


def disaggregated(hardware: str = "2*h100x8", engine: str = "vllm", **apart: object) -> CompiledFleet:
    split = {"prefill_replicas": 1, "decode_replicas": 1, **apart}
    keys = {"max_model_len": 8192, "max_num_seqs": 32, "max_num_batched_tokens": 4096}
    return compile_fleet(
        Deployment(model="llama3.1-8b", engine=engine, hardware=hardware, disaggregation=split, **keys)
    )  # type: ignore[arg-type]


def path_of(fleet: CompiledFleet) -> RankPath:
    prefill, decode = fleet.deployments
    return RankPath.between(prefill, decode, fleet)


WORK = RequestSet(np.linspace(0.0, 4.0, 30), np.full(30, 4000), np.full(30, 20))


def test_an_engine_hands_over_as_its_file_says_and_a_deployment_may_say_otherwise() -> None:
    vllm = disaggregated()
    assert (vllm.hand_over.first_token, vllm.transfer) == ("decode", "at_end")
    end, layers = run(vllm, WORK), run(disaggregated(transfer="layerwise"), WORK)
    sent_s = [done.handovers[:, 4] - done.handovers[:, 3] for done in (end, layers)]
    # 4,000 tokens of 128 KiB over one 50 GB/s card: 10.5 ms; of 32 layers the last takes a 32nd of it
    assert sent_s[0] == pytest.approx(4000 * 131072 / 50e9 + 14e-6, rel=1e-6)
    assert sent_s[1] == pytest.approx(4000 * 131072 / 50e9 / 32 + 14e-6, rel=1e-6)
    assert (layers.first_token_s < end.first_token_s).all()
    sglang = disaggregated(engine="sglang")
    assert (sglang.hand_over.first_token, sglang.transfer) == ("admission", "chunkwise")
    path = path_of(sglang)
    assert (path.pieces(4000), path.pieces(9000)) == (1, 3)  # chunks of 4,096
    assert (run(sglang, WORK, RunOptions(check_invariants=True)).completed).all()
    kept = run(disaggregated(max_local_prefill_tokens=4000), WORK)
    assert not len(kept.handovers)


def test_uneven_ends_send_as_fast_as_the_slower_one() -> None:
    """Four ranks send a quarter each to one that takes all of it."""
    fleet = disaggregated(prefill={"tensor_parallel": 4})
    path = path_of(fleet)
    assert path.load(1000).in_s == pytest.approx(1000 * 131072 / 50e9)
    asked = disaggregated(transfer_gb_per_s=10.0)
    assert path_of(asked).load(1000).in_s == pytest.approx(1000 * 131072 / 10e9)


def test_each_rank_that_holds_a_latent_cache_gets_a_copy() -> None:
    """DeepSeek's latent vectors are on every tensor rank: one attention rank sends eight copies of its prompt, and
    eight tensor ranks that receive from eight send one each."""
    layouts = {"data_parallel": 8, "expert_parallel": True}, {"tensor_parallel": 8, "expert_parallel": True}
    for source, copies in zip(layouts, (8, 1), strict=True):
        split = {"prefill_replicas": 1, "decode_replicas": 1, "prefill": source, "decode": layouts[1]}
        keys = {"max_model_len": 8192, "max_num_seqs": 32, "max_num_batched_tokens": 4096, "weight_dtype": "fp8"}
        fleet = compile_fleet(
            Deployment(model="deepseek-v3", engine="sglang", hardware="2*h200x8", disaggregation=split, **keys)
        )  # type: ignore[arg-type]
        load = path_of(fleet).load(1000)
        assert load.out_s == pytest.approx(copies * load.in_s)


def test_replicas_that_only_prefill_or_only_decode_have_rules_of_their_own() -> None:
    """SGLang draws the rank of a prompt, and without an interval sees transfers before every step. TensorRT-LLM's
    context servers do not schedule ahead, and on its decode ranks no prompts wait for each other."""
    layout = {"data_parallel": 8, "expert_parallel": True}
    split = {"prefill_replicas": 1, "decode_replicas": 1, "prefill": layout, "decode": layout}
    keys = {"model": "deepseek-v3", "hardware": "2*b200x8", "weight_dtype": "fp8"}

    def rules_of(engine: str, **more: object) -> list[EngineRules]:
        pools = {**split, "prefill": {**layout, **more}}
        fleet = compile_fleet(Deployment(engine=engine, disaggregation=pools, **keys))  # type: ignore[arg-type]
        return [engine_rules(compiled) for compiled in fleet.deployments]

    prefill, decode = rules_of("sglang")
    assert (prefill.rank_dispatch, decode.rank_dispatch) == ("random", "round_robin")
    assert (prefill.receiving, decode.receiving) == (None, None)
    assert rules_of("sglang", rank_dispatch="least_tokens")[0].rank_dispatch == "least_tokens"
    prefill, decode = rules_of("trtllm")
    assert (prefill.lag, decode.lag) == (0, 1)
    assert (prefill.balance_steps, decode.balance_steps) == (60, 0)
    assert prefill.rank_dispatch == decode.rank_dispatch == "least_tokens"


@pytest.mark.parametrize(("engine", "queues"), [("vllm", None), ("sglang", 4), ("trtllm", 1)])
def test_transfers_share_the_link_or_go_one_after_the_other(engine: str, queues: int | None) -> None:
    """Two to the one replica that decodes, w alone, the second g after the first: at once the first ends at 2 w - g, in
    its queue at w; the second at 2 w either way."""
    fleet = disaggregated(engine=engine, transfer="at_end", transfer_gb_per_s=1.0)
    assert fleet.transfer_queues == queues
    done = run(fleet, RequestSet(np.zeros(2), np.full(2, 1000), np.full(2, 5)), RunOptions(check_invariants=True))
    path = path_of(fleet)
    begun, ended = done.handovers[:, 3], done.handovers[:, 4] - path.latency_s
    wire_s, gap_s = path.load(1000).in_s, begun[1] - begun[0]
    assert 0.0 <= gap_s < wire_s
    assert ended - begun[0] == pytest.approx([wire_s if queues else 2 * wire_s - gap_s, 2 * wire_s])


def test_each_receiver_has_a_queue_of_its_own_where_there_are_several() -> None:
    """Three prompts of one step to two replicas, 4 s each alone. Two queues: the first and the third go one after the
    other, beside the second; in one, all three follow each other."""
    work = requests([0.0] * 3, [16] * 3, [2] * 3)
    for queues, ends in ((2, [9.0, 9.0, 13.0]), (1, [5.0, 9.0, 13.0]), (None, [13.0, 13.0, 13.0])):
        done = simulate(
            work, DisaggregationPolicy(), TransferLinks({(0, 1): Wire(0.25, 0.0)}, queues=queues), counts=(1, 2)
        )
        assert done.handovers[:, 4].tolist() == ends


def test_what_is_under_way_when_a_run_is_cut_has_no_end() -> None:
    pools = [Pool(rules(), Linear(), 1, "prefill"), Pool(rules(), Linear(), 1, "decode")]
    options = RunOptions(check_invariants=True, transfer=ports(), hand_over=DisaggregationPolicy(), horizon_s=2.75)
    done = run_pools(pools, requests([0.0, 1.0], [4, 4], [3, 3]), options)
    assert done.handovers[0, 4] == 2.5
    assert np.isnan(done.handovers[1, 4])
    assert latency_metrics(done)["kv_transfer_s"]["mean"] == 1.5


def test_slices_send_through_the_card_of_their_gpu() -> None:
    """Two prefill slices of one H100 and decode elsewhere: a single transfer has the whole card, two share it."""
    split = {
        "prefill_replicas": 2,
        "decode_replicas": 2,
        "prefill": {"hardware": "h100:3g.40gbx2"},
    }
    keys = {"max_model_len": 4096, "max_num_seqs": 16, "max_num_batched_tokens": 2048}
    fleet = compile_fleet(Deployment(model="llama3.2-3b", hardware="h100x2", disaggregation=split, **keys))  # type: ignore[arg-type]
    path = path_of(fleet)
    assert (path.source_bytes_per_s, path.target_bytes_per_s) == (50e9, 50e9)
    assert isinstance(transfer_links(fleet), TransferLinks)
    links = card_links(fleet)

    class Stands:
        def __init__(self, pool: int, index: int, slot: int) -> None:
            self.pool, self.index, self.slot = pool, index, slot

    slices = [links(Stands(0, i, i)) for i in range(2)]  # type: ignore[arg-type]
    assert slices[0] == slices[1]
    wholes = [links(Stands(1, 2 + i, i)) for i in range(2)]  # type: ignore[arg-type]
    assert wholes[0] != wholes[1]
    work = RequestSet(np.zeros(2), np.full(2, 1500), np.full(2, 5))
    done = run(fleet, work, RunOptions(check_invariants=True))
    begun, ended = done.handovers[:, 3], done.handovers[:, 4]
    assert begun[0] == begun[1]
    assert ended[0] == ended[1]
    assert ended[0] - begun[0] == pytest.approx(2 * path.load(1500).in_s + path.latency_s)


def test_replicas_of_one_node_share_its_card() -> None:
    """Eight A10G have one interface of 100 Gb/s: a single transfer gets all of it, four get a quarter each."""
    split = {"prefill_replicas": 8, "decode_replicas": 8}
    keys = {"max_model_len": 4096, "max_num_seqs": 16, "max_num_batched_tokens": 2048}
    fleet = compile_fleet(Deployment(model="llama3.2-3b", hardware="2*a10gx8", disaggregation=split, **keys))  # type: ignore[arg-type]
    path = path_of(fleet)
    assert path.source_bytes_per_s == 12.5e9
    done = run(fleet, RequestSet(np.zeros(4), np.full(4, 1000), np.full(4, 3)), RunOptions(check_invariants=True))
    assert np.ptp(done.handovers[:, 3]) == 0.0
    took_s = done.handovers[:, 4] - done.handovers[:, 3]
    assert took_s == pytest.approx(4 * path.load(1000).in_s + path.latency_s)
    assert fleet.deployments[1].resolved.hardware.n_nodes == 2


def test_trays_of_a_rack_hand_over_by_nvlink() -> None:
    fleet = disaggregated("2*gb200x4", prefill={"tensor_parallel": 4}, decode={"tensor_parallel": 4})
    assert path_of(fleet).source_bytes_per_s == 900e9


@pytest.mark.parametrize("key", [{"transfer": "sometimes"}, {"max_local_prefill_tokens": 0}, {"max_prefill_queue": 0}])
def test_bad_hand_overs_are_refused(key: dict[str, object]) -> None:
    split = {"prefill_replicas": 1, "decode_replicas": 1, **key}
    with pytest.raises(InputError, match=next(iter(key))):
        validate_as(Deployment, {"model": "llama3.1-8b", "hardware": "h100x2", "disaggregation": split}, "d.yaml")


def test_without_pools_nothing_is_handed_over() -> None:
    plant = compile_deployment(Deployment(model="llama3.1-8b", hardware="h100", max_model_len=8192, max_num_seqs=32))
    done = run(plant, replace(WORK, output_tokens=np.full(30, 2)))
    assert not len(done.handovers)
