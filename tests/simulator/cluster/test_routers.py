"""Every router under one contract, each one's own choice by hand, stale signals, and what queueing theory says."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.deployments.routing import PrefixAware, Scored, parse_router
from catalogs.errors import InputError
from catalogs.workloads.request_set import RequestSet
from simulator.cache.kv_cache import KvCache
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.routers.base import ReplicaView
from simulator.cluster.routers.registry import ROUTERS, make_router
from simulator.cluster.run import Run
from simulator.cluster.simulate import run_pools
from simulator.core.request import Request
from tests.simulator.batch_means import half_width
from tests.simulator.worlds import Linear, requests, rules

NAMES = sorted(ROUTERS)


def simulate(work: RequestSet, n: int = 2, router: object = "round_robin", **options: object) -> Run:
    engine = rules(**{k: options.pop(k) for k in ("kv_blocks", "max_num_seqs", "lag") if k in options})
    timer = options.pop("timer", Linear())
    chosen = RunOptions(router=parse_router(router), check_invariants=True, **options)  # type: ignore[arg-type]
    return run_pools([Pool(engine, timer, n)], work, chosen)  # type: ignore[arg-type]


@dataclass
class _Engine:
    kv: KvCache


class Fake:
    """A replica as a router sees one."""

    def __init__(self, index: int, **signals: float) -> None:
        self.index, self.scheduler = index, _Engine(KvCache(100, 4, prefix_caching=True))
        self.outstanding = self.outstanding_tokens = self.n_waiting = 0
        self.kv_used_fraction = 0.0
        vars(self).update(signals)


def ask(router: object, loads: list[dict[str, float]], *wanted: Request) -> list[int]:
    made = make_router(parse_router(router), ReplicaView())
    fakes = [Fake(i, **load) for i, load in enumerate(loads)]
    return [made.choose(request, fakes) for request in wanted]  # type: ignore[arg-type]


# ---- the contract


@st.composite
def workloads(draw: st.DrawFn) -> RequestSet:
    n = draw(st.integers(1, 14))
    arrivals = np.cumsum(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=n, max_size=n)))
    inputs = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    groups = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    hashes = [list(range(100 * g, 100 * g + i // 4)) for g, i in zip(groups, inputs, strict=True)]
    drawn = requests(arrivals.tolist(), inputs, outputs, hashes if draw(st.booleans()) else None)
    return replace(drawn, sessions=np.array(groups)) if draw(st.booleans()) else drawn


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stale", [0.0, 0.7])
@settings(max_examples=15, deadline=None)
@given(work=workloads(), n=st.integers(1, 4), blocks=st.sampled_from([22, 1000]), lag=st.sampled_from([0, 1]))
def test_contract(name: str, stale: float, work: RequestSet, n: int, blocks: int, lag: int) -> None:
    """Everybody is served once, on a replica that exists; the same again; fast-forward changes no choice."""
    timer = Linear(base_s=0.25, decode_s=0.125, prompt_token_s=0.0625, context_s=2.0**-10, segment_steps=7)
    options = {"router": name, "router_staleness_s": stale, "kv_blocks": blocks, "timer": timer, "lag": lag}
    runs = [simulate(work, n, **options, fast_forward=fast) for fast in (True, True, False)]
    for run in runs:
        assert (run.completed | run.rejected).all()
        assert ((run.replica >= 0) == run.completed).all()
        assert (run.replica < n).all()
        assert run.replica.tolist() == runs[0].replica.tolist()
        np.testing.assert_allclose(run.last_token_s, runs[0].last_token_s, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_no_router_reads_output_lengths(name: str) -> None:
    """Requests that arrive together are routed before any token: their lengths must not matter."""
    lengths = np.random.default_rng(0).integers(1, 30, 20).tolist()
    chosen = []
    for outputs in (lengths, lengths[::-1]):
        work = requests([0.0] * 20, [8] * 20, outputs, [[i % 3, 10 + i] for i in range(20)])
        chosen.append(simulate(work, 3, name).replica.tolist())
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("name", NAMES)
def test_blind_routers_choose_the_same_whatever_replicas_show(name: str) -> None:
    """Loads change no choice of a router that says that it ignores replicas, and some choice of any other router."""
    asked = [Request(i, 8, (i % 3, 10 + i)) for i in range(40)]
    idle: list[dict[str, float]] = [{} for _ in range(3)]
    signals = ("outstanding", "outstanding_tokens", "n_waiting", "kv_used_fraction")
    busy = [dict.fromkeys(signals, 1000.0 if i < 2 else 0.0) for i in range(3)]
    options = {name: {"kv": 1.0}} if name == "scored" else name
    same = ask(options, idle, *asked) == ask(options, busy, *asked)
    assert same == make_router(name, ReplicaView()).ignores_replicas


# ---- each by hand


def test_least_tokens_counts_prompts_and_least_outstanding_heads() -> None:
    work = requests([0.0, 0.0, 0.0, 0.0], [40, 4, 4, 4], [5] * 4)
    assert simulate(work, 2, "least_outstanding").replica.tolist() == [0, 1, 0, 1]
    assert simulate(work, 2, "least_tokens").replica.tolist() == [0, 1, 1, 1]


def test_tokens_leave_with_their_request() -> None:
    work = requests([0.0, 0.0, 9.0], [40, 4, 4], [2, 2, 2])
    assert simulate(work, 2, "least_tokens").replica.tolist() == [0, 1, 0]


def test_kv_aware_goes_where_the_cache_is_free() -> None:
    work = requests([0.0, 0.0, 2.5, 2.5], [40, 4, 4, 4], [9, 9, 9, 9])
    assert simulate(work, 2, "kv_aware").replica.tolist() == [0, 1, 1, 1]


def test_power_of_two_takes_the_better_of_two_different_ones() -> None:
    loads: list[dict[str, float]] = [{"outstanding": 5}, {"outstanding": 0}]
    assert set(ask("power_of_two", loads, *[Request(i, 4) for i in range(50)])) == {1}
    three = ask("power_of_two", [{"outstanding": 9}, {"outstanding": 1}, {"outstanding": 2}], *[Request(0, 4)] * 600)
    assert three.count(0) == 0  # never the worst: two are different
    assert three.count(1) / 600 == pytest.approx(2 / 3, abs=0.07)


def test_a_session_stays_where_it_is_and_moves_when_its_replica_is_gone() -> None:
    made = make_router("session_affinity", ReplicaView(sessions=[i % 7 for i in range(70)]))
    fakes = [Fake(i) for i in range(4)]
    homes = [fakes[made.choose(Request(i, 4), fakes)].index for i in range(70)]  # type: ignore[arg-type]
    assert homes[:7] * 10 == homes
    assert len(set(homes)) > 1
    gone = homes[0]
    left = [fake for fake in fakes if fake.index != gone]
    moved = [left[made.choose(Request(i, 4), left)].index for i in range(70)]  # type: ignore[arg-type]
    assert gone not in moved
    assert all(new == old for new, old in zip(moved, homes, strict=True) if old != gone)


def test_a_prompt_goes_where_its_prefix_went() -> None:
    """8 of 12 tokens match beyond the threshold of 0.3; a stranger goes where fewest tokens were sent."""
    first, other = Request(0, 12, (1, 2, 3)), Request(1, 8, (7, 8))
    like_first, stranger = Request(2, 12, (1, 2, 9)), Request(3, 20, (20, 21, 22, 23, 24))
    assert ask("prefix_aware", [{}, {}, {}], first, other, like_first, stranger) == [0, 1, 0, 2]
    strict = {"prefix_aware": {"cache_threshold": 0.7}}
    assert ask(strict, [{}, {}, {}], first, other, like_first, stranger) == [0, 1, 2, 1]


def test_uneven_load_comes_before_the_prefix() -> None:
    first, again = Request(0, 12, (1, 2, 3)), Request(1, 12, (1, 2, 3))
    made = make_router(parse_router({"prefix_aware": {"balance_abs_threshold": 10}}), ReplicaView())
    fakes = [Fake(0), Fake(1)]
    assert made.choose(first, fakes) == 0  # type: ignore[arg-type]
    fakes[0].outstanding = 10
    assert made.choose(again, fakes) == 0  # type: ignore[arg-type]
    fakes[0].outstanding = 11
    assert made.choose(again, fakes) == 1  # type: ignore[arg-type]


def test_what_a_replica_has_no_room_for_is_forgotten_from_the_end() -> None:
    made = make_router(parse_router("prefix_aware"), ReplicaView())
    small = Fake(0)
    small.scheduler.kv.total = 3
    made.choose(Request(0, 16, (1, 2, 3, 4)), [small])  # type: ignore[list-item]
    assert made._record.matches((1, 2, 3, 4)) == {0: 3}  # type: ignore[attr-defined]
    made.choose(Request(1, 8, (1, 9)), [small])  # type: ignore[list-item]
    assert made._record.matches((1, 2, 3, 4)) == {0: 2}  # type: ignore[attr-defined]
    assert made._record.matches((1, 9)) == {0: 2}  # type: ignore[attr-defined]


def test_matches_are_those_of_a_walk_key_by_key() -> None:
    rng = np.random.default_rng(0)
    made = make_router(parse_router("prefix_aware"), ReplicaView())
    fakes = [Fake(i) for i in range(3)]
    sent: dict[int, list[tuple[int, ...]]] = {0: [], 1: [], 2: []}
    for i in range(60):
        keys = tuple(prefix_keys(rng.integers(0, 2, 6)))
        expected = {r: n for r in sent if (n := max((common(keys, k) for k in sent[r]), default=0))}
        assert made._record.matches(keys) == expected  # type: ignore[attr-defined]
        sent[made.choose(Request(i, 24, keys), fakes)].append(keys)  # type: ignore[arg-type]


def prefix_keys(bits: np.ndarray) -> list[int]:
    """Keys that name their whole prefix."""
    found, at = [], 1
    for bit in bits.tolist():
        at = 2 * at + bit
        found.append(at)
    return found


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def test_scores_add_up() -> None:
    """3 * 2/3 for the prefix against 2 for the empty queue: a tie goes to the first, a nudge to the other."""
    seen, asked = Request(0, 12, (1, 2, 3)), Request(1, 12, (1, 2, 4))
    for queue, winner in ((2.0, 0), (2.1, 1)):
        made = make_router(parse_router({"scored": {"queue": queue}}), ReplicaView())
        fakes = [Fake(0), Fake(1)]
        assert made.choose(seen, fakes) == 0  # type: ignore[arg-type]
        fakes[0].n_waiting = 5
        assert made.choose(asked, fakes) == winner  # type: ignore[arg-type]


def test_prefix_aware_hits_where_round_robin_misses() -> None:
    n, groups = 60, 6
    hashes = [[10 * (i % groups) + j for j in range(8)] for i in range(n)]
    work = requests(np.arange(n, dtype=float).tolist(), [34] * n, [2] * n, hashes)
    names = ("round_robin", "prefix_aware")
    hits = {name: int(simulate(work, 4, name, kv_blocks=60).cached_tokens.sum()) for name in names}
    assert hits["prefix_aware"] == (n - groups) * 32
    assert hits["round_robin"] < hits["prefix_aware"]


# ---- stale signals


def test_stale_signals_are_those_of_the_last_look() -> None:
    """Looks at 2, 4, …: until then all seem idle, and everything goes to the first."""
    work = requests([0.0, 0.5, 1.0, 2.5, 3.0, 4.5], [4] * 6, [9] * 6)
    fresh = simulate(work, 2, "least_outstanding")
    assert fresh.replica.tolist() == [0, 1, 0, 1, 0, 1]
    stale = simulate(work, 2, "least_outstanding", router_staleness_s=2.0)
    assert stale.replica.tolist() == [0, 0, 0, 1, 1, 1]  # at 2: 3 and 0; at 4: 3 and 2
    assert simulate(work, 2, "round_robin", router_staleness_s=2.0).replica.tolist() == [0, 1] * 3


def test_the_older_the_signals_the_longer_the_queue() -> None:
    rng = np.random.default_rng(3)
    n = 4000
    ones = np.ones(n, dtype=np.int64)
    work = RequestSet(np.cumsum(rng.exponential(1 / 6.4, n)), 8 * ones, ones)
    waits = [
        run_pools(
            [Pool(rules(max_num_seqs=1), Linear(), 8)],
            work,
            RunOptions(router="least_outstanding", router_staleness_s=s),
        ).queue_s.mean()
        for s in (0.0, 2.0, 16.0)
    ]
    assert waits[0] < waits[1] < waits[2]


# ---- queueing theory


def m_m(servers: int, rho: float, n: int, seed: int, tokens: int = 200) -> tuple[RequestSet, Linear]:
    """Exponential service of mean 1 s (as many steps as tokens) on each of so many replicas with one seat."""
    rng = np.random.default_rng(seed)
    outputs = np.maximum(1, np.rint(rng.exponential(tokens, n))).astype(np.int64)
    arrivals = np.cumsum(rng.exponential(1.0 / (rho * servers), n))
    return RequestSet(arrivals, np.ones(n, dtype=np.int64), outputs), Linear(base_s=1.0 / tokens)


def waits_of(router: str, servers: int, rho: float, n: int = 20_000, seed: int = 0) -> np.ndarray:
    work, timer = m_m(servers, rho, n, seed)
    engine = rules(max_num_seqs=1, kv_blocks=10**6, max_model_len=10**6)
    return run_pools([Pool(engine, timer, servers)], work, RunOptions(router=router)).queue_s[1000:]


def erlang_c_wait_s(servers: int, rho: float) -> float:
    """Mean wait of M/M/k with one queue, service 1 s."""
    term, total = 1.0, 1.0
    for i in range(1, servers):
        term *= servers * rho / i
        total += term
    last = term * servers * rho / servers / (1.0 - rho)
    return last / (total + last) / (servers * (1.0 - rho))


def test_split_at_random_is_k_queues_of_their_own() -> None:
    """Poisson split at random stays Poisson: M/M/1 at each, mean wait rho / (1 - rho)."""
    waits = waits_of("random", 4, 0.6, 30_000)
    assert abs(waits.mean() - 0.6 / 0.4) < half_width(waits) < 0.4


def test_central_queue_bounds_every_router_and_more_sight_is_better() -> None:
    """M/M/k with one queue waits least; the shortest queue comes near, two choices lie between it and random."""
    servers, rho = 8, 0.8
    bound = erlang_c_wait_s(servers, rho)
    waits = {name: waits_of(name, servers, rho) for name in ("least_outstanding", "power_of_two", "random")}
    means = {name: float(w.mean()) for name, w in waits.items()}
    assert bound < means["least_outstanding"] < means["power_of_two"] < means["random"]
    assert means["least_outstanding"] < 3.0 * bound
    assert means["power_of_two"] < 0.5 * means["random"]


def test_two_choices_make_long_queues_doubly_exponentially_rare() -> None:
    """Mitzenmacher 2001: with many servers, a share rho^(2^i - 1) of queues holds at least i requests."""
    servers, rho = 100, 0.8
    work, timer = m_m(servers, rho, 15_000, 5, tokens=100)
    engine = rules(max_num_seqs=1, kv_blocks=10**6, max_model_len=10**6)
    lengths: list[int] = []

    class Watch:
        def start(self, cluster: Cluster) -> None:
            def look() -> None:
                if cluster.clock.now > 60.0:
                    lengths.extend(replica.outstanding for replica in cluster.replicas)

            cluster.timetable.every(1.0, look)

    pools = [Pool(engine, timer, servers)]
    last_s = float(work.arrival_s[-1])
    run_pools(pools, work, RunOptions(router="power_of_two", controllers=(Watch(),), horizon_s=last_s))
    seen = np.array(lengths)
    rho = float((seen >= 1).mean())  # as it came out
    assert rho == pytest.approx(0.8, abs=0.03)
    for i in (2, 3):
        assert (seen >= i).mean() == pytest.approx(rho ** (2**i - 1), abs=0.03)


# ---- bad input


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ("least_oustanding", "least_outstanding"),
        ({"prefix_aware": {"cache_treshold": 0.5}}, "cache_threshold"),
        ({"prefix_aware": {"cache_threshold": 2}}, "less than or equal to 1"),
        ({"random": {"seed": -1}}, "greater than or equal to 0"),
        ({"scored": {"prefix": 0, "queue": 0}}, "needs at least one nonzero weight"),
        (["round_robin"], "exactly one"),
    ],
)
def test_routers_that_make_no_sense_are_refused(router: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_router(router)


def test_defaults_are_those_of_their_sources() -> None:
    assert parse_router("prefix_aware") == PrefixAware(
        cache_threshold=0.3, balance_abs_threshold=64, balance_rel_threshold=1.5
    )
    assert parse_router("scored") == Scored(prefix=3, queue=2, kv=0)
