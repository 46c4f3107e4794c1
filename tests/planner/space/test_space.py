"""Laws of the search space: every candidate is legal, and nothing legal and plain is missing."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.errors import InputError
from planner.problem.request import PlanRequest
from planner.problem.slo import parse_slos
from planner.space.candidates import candidates, distance_from_defaults, single_replicas

SLOS = parse_slos(["p99=2s"])
CASES = [
    ("llama3.1-405b", "h100x8"),
    ("llama3.1-8b", "h100x8"),
    ("llama3.1-8b", "rtx4090"),
    ("deepseek-v3", "h200x8"),
    ("llama3.1-70b", "2*a100-80gbx8"),
    ("llama3.1-8b", "a100-80gb:2g.20gbx3"),
]


def space(model: str, hardware: str, **asked: object) -> tuple[list, CatalogLookup]:  # type: ignore[type-arg]
    names = CatalogLookup.of(model, "vllm", hardware)
    return candidates(PlanRequest(model=model, hardware=hardware, slos=SLOS, **asked), names), names  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "hardware"), CASES)
def test_every_candidate_resolves_and_fits_the_node(model: str, hardware: str) -> None:
    found, names = space(model, hardware)
    assert found
    assert len(set(found)) == len(found)
    for c in found[:: max(1, len(found) // 60)]:
        resolved = resolve(c.deployment(model, "vllm"))
        assert resolved.replicas * resolved.accelerators_per_replica <= names.hardware.n_accelerators
        assert resolved.layout.tensor_parallel <= names.hardware.accelerators_per_node
        assert (resolved.limits.max_num_seqs, resolved.weight_dtype) == (c.max_num_seqs, c.weight_dtype)


@pytest.mark.parametrize(("model", "hardware"), CASES)
def test_without_a_rate_every_accelerator_that_can_work_does(model: str, hardware: str) -> None:
    found, names = space(model, hardware)
    n = names.hardware.n_accelerators
    assert all(n - c.accelerators < c.accelerators // c.replicas for c in found)


def test_the_plainest_comes_first() -> None:
    found, names = space("llama3.1-8b", "h100x8")
    assert set(distance_from_defaults(found[0], names)) == {0}
    tokens, seqs = names.default_limits
    assert (found[0].max_num_batched_tokens, found[0].max_num_seqs) == (tokens, seqs)


@pytest.mark.parametrize(("model", "hardware"), CASES)
def test_single_replicas_are_the_layouts_and_weights_of_the_space(model: str, hardware: str) -> None:
    found, names = space(model, hardware)
    single = single_replicas(PlanRequest(model=model, hardware=hardware, slos=SLOS), names)
    assert {(c.layout, c.weight_dtype) for c in single} >= {(c.layout, c.weight_dtype) for c in found}
    sizes = [c.accelerators for c in single]
    assert sizes == sorted(sizes)
    assert len(set(single)) == len(single)
    assert {c.replicas for c in single} == {1}
    tokens, seqs = names.default_limits
    assert {(c.max_num_batched_tokens, c.max_num_seqs) for c in single} == {(tokens, seqs)}


def test_fp8_is_offered_only_where_it_is_computed_and_int4_only_when_asked() -> None:
    assert {c.weight_dtype for c in space("llama3.1-8b", "h100x8")[0]} == {"bf16", "fp8"}
    assert {c.weight_dtype for c in space("llama3.1-8b", "a100-80gbx8")[0]} == {"bf16"}
    assert {c.weight_dtype for c in space("llama3.1-8b", "h100x8", precisions=("int4",))[0]} == {"int4"}
    both = space("llama3.1-8b", "h100x8", precisions=("native", "int4"))[0]
    assert {c.weight_dtype for c in both} == {"bf16", "int4"}


def test_a_rate_opens_smaller_parts_of_the_node_cheapest_first() -> None:
    found, _ = space("llama3.1-8b", "h100x8", requests_per_s=3.0)
    sizes = [c.hardware.n_accelerators for c in found]
    assert sizes == sorted(sizes)
    assert set(sizes) == set(range(1, 9))
    assert {c.accelerators for c in found if c.hardware.text == "h100x3"} == {3}


def test_expert_parallel_only_for_mixtures() -> None:
    assert not any(c.layout.expert_parallel for c in space("llama3.1-405b", "h100x8")[0])
    moe = space("deepseek-v3", "h200x8")[0]
    assert {c.layout.expert_parallel for c in moe} == {True, False}
    assert max(c.layout.data_parallel for c in moe) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": "cheap"},
        {"requests_per_s": 0.0},
        {"requests_per_s": float("nan")},
        {"precisions": ("fp7",)},
        {"search": {"trials": 0}},
    ],
)
def test_bad_requests_are_one_line(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        PlanRequest(model="llama3.1-8b", hardware="h100", slos=SLOS, **wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
