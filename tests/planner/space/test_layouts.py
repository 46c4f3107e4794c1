"""Wider ways to cut a replica: legal, only where needed or asked for, and fixed keys that leave the rest to choose."""

from __future__ import annotations

import time

import pytest

from catalogs.deployments.layout import Layout
from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.errors import InputError
from planner.evaluation.multi_hardware import open_evaluator
from planner.problem.candidate import Candidate
from planner.problem.demand import FailureTolerance
from planner.problem.overrides import PLAN_ELSEWHERE, Overrides, parse_keys
from planner.problem.request import EXTENSIONS, PlanRequest
from planner.problem.scenario import command_of
from planner.problem.slo import parse_slos
from planner.space.candidates import candidates, refused_layouts, widest_limits
from planner.space.layouts import replicas_of

SLOS = parse_slos(["p99=2s"])


def fixed_by(settings: list[str]) -> Overrides:
    return Overrides.of(parse_keys(settings, PLAN_ELSEWHERE))


def space(model: str, hardware: str, fixed: tuple[str, ...] = (), **asked: object) -> list[Candidate]:
    request = PlanRequest(model=model, hardware=hardware, slos=SLOS, fixed=fixed_by(fixed), **asked)  # type: ignore[arg-type]
    return candidates(request, CatalogLookup.of(model, "vllm", hardware))


@pytest.mark.parametrize(
    ("model", "hardware", "n"),
    [("llama3.1-405b", "h100x8", 320), ("llama3.1-8b", "h100x8", 320), ("deepseek-v3", "h200x8", 520)],
)
def test_the_default_space_has_not_grown(model: str, hardware: str, n: int) -> None:
    """What is looked at where nothing more is asked for: a wider space would cost every plain question its time."""
    found = space(model, hardware)
    assert len(found) == n
    assert all(c.layout.pipeline_parallel == c.layout.context_parallel == 1 for c in found)


def test_the_default_question_is_laid_out_and_bounded_in_no_time() -> None:
    """Processor time before anything is simulated, of the 15 s that the whole answer may take."""
    world = open_evaluator(PlanRequest(model="llama3.1-405b", hardware="h100x8", slos=SLOS))
    begun_s = time.process_time()
    left = [c for c in world.space() if world.discard(c) is None]
    assert left
    assert time.process_time() - begun_s < 3.0


@pytest.mark.parametrize(
    ("model", "hardware"),
    [("llama3.1-8b", "h100x8"), ("deepseek-v3", "2*h200x8"), ("llama3.1-405b", "3*a100-80gbx8")],
)
def test_every_wider_candidate_resolves_and_fits(model: str, hardware: str) -> None:
    found = space(model, hardware, also=EXTENSIONS, precisions=("native",))
    layouts = {c.layout: c for c in found}
    assert len(layouts) > len({c.layout for c in space(model, hardware, precisions=("native",))})
    names = CatalogLookup.of(model, "vllm", hardware)
    for layout, c in layouts.items():
        resolved = resolve(c.deployment(model, "vllm"))
        assert (resolved.layout, resolved.replicas) == (layout, replicas_of(names, layout))
        assert c.accelerators <= names.hardware.n_accelerators


def test_a_model_beyond_one_node_is_cut_over_several() -> None:
    """810 GB of bf16 weights on nodes of 640 GB; nothing has to be asked for."""
    found = {c.layout for c in space("llama3.1-405b", "2*h100x8", precisions=("bf16",))}
    assert {(x.tensor_parallel, x.pipeline_parallel) for x in found} >= {(8, 2), (4, 4), (16, 1)}
    fits = {c.layout for c in space("llama3.1-70b", "2*h100x8", precisions=("bf16",))}
    assert {(x.tensor_parallel, x.pipeline_parallel) for x in fits} == {(1, 1), (2, 1), (4, 1), (8, 1)}


def test_weights_that_the_hardware_cannot_multiply_do_not_hold_a_model_in_one_node() -> None:
    """In fp8 the 405B fits in a node of eight A100, which have no fp8: the search has bf16 weights, which do not."""
    found = space("llama3.1-405b", "2*a100-80gbx8")
    assert {c.weight_dtype for c in found} == {"bf16"}
    assert (8, 2) in {(c.layout.tensor_parallel, c.layout.pipeline_parallel) for c in found}


def test_fixed_keys_leave_the_others_to_choose() -> None:
    found = space("llama3.1-8b", "h100x8", ("tensor_parallel=2", "max_num_seqs=100", "prefix_caching=false"))
    assert {c.layout.tensor_parallel for c in found} == {2}
    assert {c.max_num_seqs for c in found} == {100}
    assert len({c.max_num_batched_tokens for c in found}) > 1
    assert {c.deployment("llama3.1-8b", "vllm").prefix_caching for c in found} == {False}
    assert {c.layout.pipeline_parallel for c in space("llama3.1-8b", "h100x8", ("pipeline_parallel=2",))} == {2}


def test_copies_of_experts_are_in_the_layouts_that_send_tokens_to_experts() -> None:
    fixed = ("redundant_experts=16", "all2all_backend=deepep_low_latency")
    found = space("deepseek-v3", "h200x8", fixed)
    assert {c.layout.redundant_experts for c in found} == {16}
    assert all(c.layout.data_parallel > 1 for c in found)
    with pytest.raises(InputError, match="send tokens to their experts") as wrong:
        space("deepseek-v3", "h200x8", fixed[:1])
    assert wrong.value.nearest == "all2all_backend: deepep_low_latency"


def test_layouts_that_copies_do_not_divide_are_left_out() -> None:
    fixed = ("redundant_experts=8", "all2all_backend=deepep_low_latency")
    ranks = {c.layout.tensor_parallel * c.layout.data_parallel for c in space("deepseek-v3", "2*h200x8", fixed)}
    assert 8 in ranks
    assert 16 not in ranks
    with pytest.raises(InputError, match="must divide by the") as wrong:
        space("deepseek-v3", "h200x8", ("redundant_experts=31", fixed[1]))
    assert wrong.value.nearest == "redundant_experts: 32"


def test_step_costs_are_compiled_for_fixed_limits_too() -> None:
    names = CatalogLookup.of("llama3.1-8b", "vllm", "rtx4090")
    assert widest_limits(names, fixed_by(["max_num_seqs=3000", "max_num_batched_tokens=40000"])) == (40000, 3000)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["tensor_parallel=3"], "tensor_parallel=2"),
        (["tensor_paralel=2"], "tensor_parallel"),
        (["kv_dtype"], "KEY=VALUE"),
        (["hardware=h200x8"], "--hw"),
        (["weight_dtype=fp8"], "--precision"),
        (["faults=[]"], "plan spares"),
        (["max_num_seqs=many"], "max_num_seqs"),
        (["max_num_seqs=100000"], "max_num_batched_tokens"),
    ],
)
def test_keys_that_cannot_be_fixed_are_one_line(settings: list[str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        space("llama3.1-8b", "h100x8", tuple(settings))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="pipelines"):
        space("llama3.1-8b", "h100x8", also=("pipeline",))


def test_the_command_says_what_was_fixed() -> None:
    fixed = fixed_by(["prefix_caching=false", "kv_dtype=fp8"])
    request = PlanRequest(model="llama3.1-8b", hardware="h100x8", slos=SLOS, also=("pipelines",), fixed=fixed)
    command = command_of(request)
    assert "--set also=pipelines" in command
    assert "--set prefix_caching=false --set 'kv_dtype=\"fp8\"'" in command


def test_a_rate_opens_parts_of_one_node_and_fewer_nodes() -> None:
    """Naming more nodes never leaves out a smaller deployment."""
    one = {c.hardware.text for c in space("llama3.1-70b", "h100x8", requests_per_s=9.0, precisions=("native",))}
    assert {"h100x2", "h100x4", "h100x6", "h100x8"} <= one
    found = space("llama3.1-70b", "3*h100x8", requests_per_s=9.0, precisions=("native",))
    assert {c.hardware.text for c in found} == one | {"2*h100x8", "3*h100x8"}
    for c in found:
        resolved = resolve(c.deployment("llama3.1-70b", "vllm"))
        assert resolved.replicas * resolved.accelerators_per_replica <= resolved.hardware.n_accelerators
    wide = space("llama3.1-405b", "4*h100x8", requests_per_s=9.0, precisions=("bf16",))
    over_two = [c for c in wide if c.layout.accelerators == 16]
    assert {(c.hardware.text, c.replicas) for c in over_two} == {("2*h100x8", 1), ("3*h100x8", 1), ("4*h100x8", 2)}
    many = {c.hardware.text for c in space("llama3.1-8b", "32*h100x8", requests_per_s=9.0, precisions=("native",))}
    assert {"h100x1", "h100x8", "32*h100x8"} < many
    assert len(many) <= 16


def test_the_loss_of_a_node_opens_equal_parts_of_several_nodes() -> None:
    """Parts of one node are lost together, so a node can only be lost from parts of two or more."""
    asked = {"requests_per_s": 9.0, "precisions": ("native",)}
    plain = space("llama3.1-70b", "3*h100x8", **asked)
    lost = space("llama3.1-70b", "3*h100x8", spare=FailureTolerance(nodes=1), **asked)
    assert {c.hardware.text for c in lost} - {c.hardware.text for c in plain} == {
        f"{nodes}*h100x{count}" for nodes in (2, 3) for count in range(1, 8)
    }
    for c in set(lost) - set(plain):
        assert c.replicas == c.hardware.n_nodes * (c.hardware.accelerators_per_node // c.layout.accelerators)
    two = space("llama3.1-70b", "3*h100x8", spare=FailureTolerance(nodes=2), **asked)
    assert {c.hardware.n_nodes for c in set(two) - set(plain)} == {3}


def test_layouts_that_the_engine_refuses_are_left_out_with_one_line() -> None:
    request = PlanRequest(model="qwen3-235b-a22b-fp8", hardware="h200x8", engine="sglang", slos=SLOS)
    names = CatalogLookup.of(request.model, request.engine, request.hardware)
    assert {c.layout for c in candidates(request, names)}.isdisjoint({Layout(8)})
    (line,) = refused_layouts(request, names)
    assert line.startswith("not compared, TP8: sglang")
    assert line in open_evaluator(request).notices
    whole = request.replace(model="llama3.1-70b")
    assert refused_layouts(whole, CatalogLookup.of(whole.model, "sglang", "h200x8")) == []


def test_a_fixed_layout_that_the_engine_refuses_is_refused_with_the_reason() -> None:
    fixed = fixed_by(["tensor_parallel=8", "expert_parallel=false"])
    request = PlanRequest(model="qwen3-235b-a22b-fp8", hardware="h200x8", engine="sglang", slos=SLOS, fixed=fixed)
    names = CatalogLookup.of(request.model, request.engine, request.hardware)
    with pytest.raises(InputError, match="192 wide"):
        candidates(request, names)


def test_a_refusal_writes_true_and_false_as_a_user_does() -> None:
    with pytest.raises(InputError) as refused:
        space("llama3.1-8b", "h100x2", fixed=("two_batch_overlap=true",))
    assert "got 'two_batch_overlap=true'; nearest valid choice: two_batch_overlap=false" in str(refused.value)


def test_no_layout_has_more_expert_ranks_than_experts() -> None:
    """A rack of 72 accelerators has tensor-parallel sizes beyond the eight experts of Mixtral."""
    found = space("mixtral-8x7b", "gb200-nvl72x16", also=EXTENSIONS, precisions=("native",))
    ranks = {c.layout.tensor_parallel * c.layout.data_parallel for c in found if c.layout.expert_parallel}
    assert ranks
    assert max(ranks) == 8
