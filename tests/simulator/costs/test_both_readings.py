"""One decomposition of a batch, read twice: as a run goes, one batch at a time, and afterwards from its log.

What a rank computes is counted by one function, for numbers as for arrays. Prices compiled from the tables are those of
the tables: every table that goes into one reading goes into the other, and with a free host nothing may hide in what
the host is said to have taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.deployments.speculation import Speculative
from catalogs.io.yaml_files import validate_as
from simulator.core.batch import Batch, BatchShape, together
from simulator.core.step_log import StepLog
from simulator.costs.compile import compile_step_cost
from simulator.costs.interpolation import MultilinearTable
from simulator.costs.partition import BatchPartition, BatchRows
from simulator.costs.pricing import N_CLASSES
from simulator.costs.speculative import SpeculativeCost
from simulator.costs.step_cost import StepCost
from simulator.costs.tables import DraftTables, StepTables
from simulator.costs.terms import DecodeTables
from simulator.costs.totals import priced
from tests.simulator.plants import ToySource, resolved
from tests.simulator.worlds import NO_HOST

EXPERTS: dict[str, Any] = {"model": "qwen3-30b-a3b", "hardware": "h100x4", "expert_parallel": True}
WORLDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "windows": {"model": "gpt-oss-120b", "weight_dtype": "fp4"},
    "states": {"model": "qwen3.5-397b-a17b", "hardware": "h100x4", "tensor_parallel": 4},
    "fused norms": {"engine": "trtllm", "hardware": "h100x2", "tensor_parallel": 2},
    "passes": {"engine": "llama.cpp"},
    "encoder": {"model": "whisper-large-v3", "max_model_len": 448, "max_num_batched_tokens": 3000},
    "context ranks": {"model": "llama3.1-8b", "hardware": "h100x2", "context_parallel": 2},
    "cut caches": {"model": "deepseek-v3", "hardware": "h200x8", "tensor_parallel": 8, "decode_context_parallel": 4},
    "ranks": EXPERTS | {"data_parallel": 4},
    "ranks and context ranks": EXPERTS | {"data_parallel": 2, "context_parallel": 2},
    "latent ranks": {"model": "deepseek-v3", "hardware": "h200x8", "data_parallel": 8, "expert_parallel": True},
    "eagle": {"speculative": {"method": "eagle", "model": "head"}},
    "eagle3": {"speculative": {"method": "eagle3", "model": "head"}, "hardware": "h100x2", "tensor_parallel": 2},
    "tree": {"engine": "sglang", "speculative": {"method": "eagle", "model": "head", "topk": 2, "num_draft_tokens": 6}},
    "draft model": {"model": "llama3.1-8b", "speculative": {"method": "draft_model", "model": "llama3.2-1b"}},
    "look-ups": {"speculative": {"method": "ngram"}},
    "drafting ranks": EXPERTS | {"data_parallel": 4, "speculative": {"method": "draft_model", "model": "qwen3-0.6b"}},
}
N_SHAPES = 60


def tables_of(world: str) -> StepTables:
    """Its host free of work."""
    keys = dict(WORLDS[world])
    if "speculative" in keys:
        asked = {"num_speculative_tokens": 3, "acceptance": 0.7} | keys["speculative"]
        keys["speculative"] = validate_as(Speculative, asked, "speculative")
    if keys.get("model", "").startswith("deepseek"):
        keys["weight_dtype"] = "fp8"
    made = resolved(**keys)
    made = replace(made, engine=replace(made.engine, host=NO_HOST))
    return compile_step_cost(made, ToySource(made.hardware.accelerator)).tables


def timer_of(tables: StepTables) -> StepCost:
    return StepCost(tables) if tables.resolved.speculation is None else SpeculativeCost(tables)


def drawn(tables: StepTables, seed: int = 0) -> Iterator[Batch]:
    """Shares of ranks or whole batches: of decodes, of prompts, and of both."""
    rng, limits = np.random.default_rng(seed), tables.resolved.limits
    most = min(limits.max_num_seqs, limits.max_num_batched_tokens // (2 * tables.partition.queries))
    for i in range(N_SHAPES):
        n = int(rng.integers(1, most)) if i % 3 != 1 else 0
        mean = int(rng.integers(1, limits.max_model_len // 2))
        above = int(rng.integers(0, limits.max_model_len // 2)) if n > 1 else 0
        batch = Batch(decodes=n, decode_context_sum=n * mean, decode_context_max=mean + above if n else 0, logits=n)
        if i % 3:
            chunks = int(rng.integers(1, 4))
            tokens, prior = int(rng.integers(chunks, limits.max_num_batched_tokens // 3)), int(rng.integers(0, 300))
            batch.prefill_tokens, batch.prefill_chunks = tokens, chunks
            batch.prefill_pairs, batch.logits = tokens * (prior + 0.5 * tokens / chunks), n + chunks
        batch.passes = 1 + i % 2 if tables.resolved.engine.policy == "llama.cpp" else 1
        yield batch


def steps_of(tables: StepTables, unequal: bool) -> list[Batch]:
    if not unequal:
        return list(drawn(tables))
    ranks = tables.resolved.layout.data_parallel
    shares = [list(drawn(tables, rank)) for rank in range(ranks)]
    parts = [[None if (i + rank) % 5 == 0 else shares[rank][i] for rank in range(ranks)] for i in range(N_SHAPES)]
    return [together(step) for step in parts if any(step)]


def read_one_by_one(timer: StepCost, steps: Sequence[BatchShape]) -> list[float]:
    return [timer.cycle_s(step) for step in steps]


def read_afterwards(tables: StepTables, steps: Sequence[Batch]) -> np.ndarray:
    """Of the device alone: what a reading lacks is not the host's."""
    log = StepLog(len(steps[0].ranks))
    for step in steps:
        log.add(0.0, 1, step, 1.0, 0.0, 1.0)
    return np.concatenate([part.device[:, :N_CLASSES].sum(axis=1) for part in priced(tables, log)])


def worlds() -> list[tuple[str, bool]]:
    return [(name, unequal) for name, keys in WORLDS.items() for unequal in {False, "data_parallel" in keys}]


@pytest.mark.parametrize(("world", "unequal"), worlds())
def test_every_table_goes_into_both_readings_alike(world: str, unequal: bool) -> None:
    """All of them, and without each in turn: a term that one reading forgot is seen when it is missed in the other."""
    tables = tables_of(world)
    steps = steps_of(tables, unequal)
    whole = read_one_by_one(timer_of(tables), steps)
    np.testing.assert_allclose(read_afterwards(tables, steps), whole, rtol=1e-9)
    missed = set()
    for name, lacking in without_each(tables):
        found = read_one_by_one(timer_of(lacking), steps)
        np.testing.assert_allclose(read_afterwards(lacking, steps), found, rtol=1e-9, err_msg=name)
        if not np.allclose(found, whole, rtol=1e-12):
            missed.add(name)
    unread = {name for name, _ in without_each(tables)} - missed
    assert unread <= empty_in(tables), f"{unread} are in no reading"


def without_each(tables: StepTables) -> Iterator[tuple[str, StepTables]]:
    """The same tables, one of them all zeros; of the drafter's, too. A table added to StepTables is among them."""
    for field in fields(tables):
        value = getattr(tables, field.name)
        if isinstance(value, MultilinearTable):
            yield field.name, changed(tables, field.name, nothing(value))
        elif isinstance(value, DecodeTables):
            for part in ("even", "skew"):
                lacking = changed(value, part, nothing(getattr(value, part)))
                yield f"{field.name}.{part}", changed(tables, field.name, lacking)
        elif isinstance(value, DraftTables):
            for which in ("first", "again"):
                for name, drafter in without_each(getattr(value, which)):
                    yield f"draft.{which}.{name}", replace(tables, draft=changed(value, which, drafter))


def changed(of: Any, name: str, value: object) -> Any:
    return replace(of, **{name: value})


def nothing(table: MultilinearTable) -> MultilinearTable:
    return MultilinearTable.of(table.axes, np.zeros_like(table.at_nodes()))


def empty_in(tables: StepTables, prefix: str = "") -> set[str]:
    """Tables that hold nothing, or that nothing is read from: a further draft's pass has no prompts."""
    found = {f"{prefix}{name}" for name, table in named(tables) if table.is_zero}
    if tables.draft is not None:
        found |= empty_in(tables.draft.first, "draft.first.") | empty_in(tables.draft.again, "draft.again.")
        found |= {f"draft.again.{name}" for name in ("prefill", "mixed.even", "mixed.skew")}
    return found


def named(tables: StepTables) -> Iterator[tuple[str, MultilinearTable]]:
    for field in fields(tables):
        value = getattr(tables, field.name)
        if isinstance(value, MultilinearTable):
            yield field.name, value
        elif isinstance(value, DecodeTables):
            yield f"{field.name}.even", value.even
            yield f"{field.name}.skew", value.skew


def test_a_term_that_one_reading_lacks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the log is read without attention, or without what drafting takes."""
    planted = (
        ("costs.tables._attention_terms", lambda *_: [], "dense"),
        ("costs.tables._attention_terms", lambda *_: [], "ranks"),
        ("costs.totals.draft_channels", lambda *_: 0.0, "eagle"),
    )
    for forgotten, nothing_, world in planted:
        tables = tables_of(world)
        steps = steps_of(tables, unequal=world == "ranks")
        whole = read_one_by_one(timer_of(tables), steps)
        with monkeypatch.context() as patch:
            patch.setattr(f"simulator.{forgotten}", nothing_)
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(read_afterwards(tables, steps), whole, rtol=1e-9)


COUNTS = st.integers(0, 10**6)


@st.composite
def batches(draw: st.DrawFn) -> BatchShape:
    n, chunks = draw(COUNTS), draw(st.integers(0, 1000))
    tokens = draw(st.integers(chunks, 10**6)) if chunks else 0
    pairs = tokens * (draw(st.integers(0, 10**5)) + 0.5 * tokens / chunks) if chunks else 0.0
    mean, above = draw(COUNTS), draw(COUNTS)
    logits, passes = draw(COUNTS), draw(st.integers(1, 5))
    return BatchShape(tokens, pairs, chunks, n, n * mean, mean + above if n else 0, logits, passes)


@st.composite
def partitions(draw: st.DrawFn) -> BatchPartition:
    ranks, context = draw(st.integers(1, 16)), draw(st.integers(1, 8))
    queries = draw(st.integers(1, 9))
    decode_ranks = ranks * draw(st.sampled_from((1, context)))
    return BatchPartition(decode_ranks, ranks, context, ranks * context, queries, draw(st.integers(1, queries)))


@given(st.lists(batches(), min_size=1, max_size=8), partitions())
def test_many_batches_are_counted_as_each_alone(shapes: list[BatchShape], partition: BatchPartition) -> None:
    """To the last digit: there is one formula for numbers and arrays."""
    rows = BatchRows.of_shapes(shapes)
    for cut in (partition, partition.within_rank):
        together = np.stack(np.broadcast_arrays(*cut.rank_counts(rows)))
        alone = np.array([cut.rank_counts(shape) for shape in shapes], dtype=np.float64).T
        np.testing.assert_array_equal(together, alone)
        group = cut.eager_group_tokens(together[0], together[1])
        each = [cut.eager_group_tokens(*cut.rank_counts(shape)[:2]) for shape in shapes]
        np.testing.assert_array_equal(group, each)
    prompts = rows.only(rows.prefill_chunks > 0)
    chunked = [shape for shape in shapes if shape.prefill_chunks]
    for name in ("chunk_tokens", "prior_tokens", "prompt_context_tokens"):
        np.testing.assert_array_equal(getattr(prompts, name), [getattr(shape, name) for shape in chunked])


def test_ranks_share_a_batch_by_hand() -> None:
    """Two data-parallel ranks of two context-parallel ranks each; a decode brings 3 tokens, 2 of them with logits."""
    partition = BatchPartition(4, 2, 2, 4, queries=3, scored=2)
    batch = BatchShape(10, 10 * (4 + 2.5), 2, 5, 500, 200, 6, passes=2)
    # decodes: ceil(5 / 4) = 2; prompts: a rank has one of two, half of its 5 tokens: ceil(10 / 4) = 3
    assert partition.rank_counts(batch) == (2 * 3 + 3, 5 * 3 + 10, 3, 1, 2, 1.0)
    # what a rank schedules itself: decodes are shared by its two, all prompts are its own
    assert partition.within_rank.rank_counts(batch) == (3 * 3 + 5, 25, 6, 1, 3, 2.0)
    single = BatchShape(7, 7 * 3.5, 1, logits=1)
    assert partition.rank_counts(single) == (4, 7, 1, 0, 0, 1.0)
    assert (batch.chunk_tokens, batch.prior_tokens, batch.prompt_context_tokens) == (5.0, 4.0, 9.0)
    assert (partition.eager_group_tokens(9, 25), partition.eager_group_tokens(4, 25)) == (25, 16)
