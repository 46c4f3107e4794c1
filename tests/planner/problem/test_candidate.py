"""Candidates hold objects, are keys and have an order; what a study and an answer keep of them is text."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from catalogs.deployments.layout import Layout
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from planner.problem.candidate import Candidate, DeploymentOverrides, Split
from planner.search.candidate_tester import Outcome
from tests.planner.queue_toy import candidate

TEXTS = ("h100x1", "h100x8", "2*h100x8", "rtx4090", "a100-80gb:1g.10gbx7", "h100-nvlx2", "h100-nvlx4")


@pytest.mark.parametrize("text", TEXTS)
def test_resized_hardware_is_the_hardware_of_the_text(text: str) -> None:
    whole = parse_hardware(text)
    for n in range(1, whole.node.max_accelerators + 1):
        name = whole.accelerator.name
        assert with_count(with_nodes(whole, 1), n) == parse_hardware(f"{name}x{n}")
        assert with_nodes(with_count(whole, n), 3) == parse_hardware(f"3*{name}x{n}")
    assert with_count(whole, whole.accelerators_per_node) == whole == with_nodes(whole, whole.n_nodes)


def test_a_bridge_joins_pairs_only() -> None:
    two = parse_hardware("h100-nvlx2")
    assert two.node.link_name != with_count(two, 4).node.link_name == parse_hardware("h100-nvlx4").node.link_name


@pytest.mark.parametrize("resize", [lambda h: with_count(h, 9), lambda h: with_count(h, 0), lambda h: with_nodes(h, 0)])
def test_a_size_that_there_is_not_is_refused(resize: object) -> None:
    with pytest.raises(InputError, match="nearest valid choice"):
        resize(parse_hardware("h100x8"))  # type: ignore[operator]


def test_what_was_said_once_of_a_text_is_not_said_of_its_parts() -> None:
    whole = parse_hardware("h100x16")
    assert (whole.text, len(whole.notices)) == ("2*h100x8", 1)
    assert with_nodes(whole, 2).notices == with_count(whole, 4).notices == whole.without_notices().notices == ()


def other(text: str) -> Hardware:
    return parse_hardware(text)


def test_equal_candidates_are_one_key_also_from_another_process() -> None:
    c = replace(candidate(), rest=DeploymentOverrides({"b": [1, 2], "a": {"y": 1, "x": 2}}))
    same = replace(candidate(), rest=DeploymentOverrides({"a": {"x": 2, "y": 1}, "b": (1, 2)}))
    assert {c: 1}[same] == {c: 1}[pickle.loads(pickle.dumps(same))] == 1
    assert c != replace(c, rest=DeploymentOverrides({"a": 1}))
    assert c != replace(c, hardware=other("h200x8"))


def test_candidates_are_ordered_by_text_then_by_their_fields() -> None:
    eight, sixteen = other("h100x8"), other("2*h100x8")
    found = [
        candidate(hardware=eight, replicas=2),
        candidate(hardware=eight, max_num_seqs=64),
        candidate(hardware=sixteen),
        candidate(hardware=eight, split=Split(1, Layout(8))),
        candidate(hardware=eight),
    ]
    keys = [(c.hardware.text, c.replicas, c.max_num_seqs, c.split.replicas) for c in sorted(found)]
    assert keys == sorted(keys)


def test_a_study_keeps_text_and_gets_its_own_candidate_back() -> None:
    c = replace(candidate(), split=Split(2, Layout(4)), rest=DeploymentOverrides({"speculative": {"k": 3}}))
    outcome = Outcome(c, "measured", 1.0, 2.0, 0.5, "ttft.p90", -1.0, 300)
    stored = json.loads(json.dumps(outcome.as_dict()))
    assert stored["candidate"]["hardware"] == "h100x8"
    assert stored["candidate"]["rest"] == '{"speculative": {"k": 3}}'
    assert stored["candidate"]["split"]["layout"]["tensor_parallel"] == 4
    kept = [name for name in Candidate.__dataclass_fields__ if name != "part"]  # of pools, which no study stores
    assert list(stored["candidate"]) == kept
    assert Outcome.from_dict(stored, c) == outcome


def test_pools_are_the_deployment_in_the_order_of_a_request() -> None:
    plain = candidate()
    assert plain.pools == (("both", plain),)
    c = replace(plain, replicas=3, split=Split(2, Layout(4)))
    (first, prefill), (second, decode) = c.pools
    assert (first, prefill.replicas, prefill.layout) == ("prefill", 2, Layout(4))
    assert (second, decode.replicas, decode.layout) == ("decode", 3, plain.layout)
    assert sum(pool.candidate.accelerators for pool in c.pools) == c.accelerators


def test_further_keys_of_a_split_belong_to_the_prefill_replicas() -> None:
    """Keys of the halves that a candidate states itself become fields; others go into the rest of one half."""
    keys = {"prefill": {"max_num_seqs": 9, "block_size": 32}, "transfer_gb_per_s": 5.0}
    c = replace(candidate(), replicas=3, split=Split(2, Layout(4), DeploymentOverrides(keys)))
    (_, prefill), (_, decode) = c.pools
    assert (prefill.max_num_seqs, prefill.rest.values) == (9, {"block_size": 32})
    assert (decode.max_num_seqs, decode.rest.values) == (c.max_num_seqs, {})
    written = c.deployment("llama3.1-70b", "vllm").disaggregation
    assert written is not None
    assert (written.prefill_replicas, written.decode_replicas, written.transfer_gb_per_s) == (2, 3, 5.0)
    assert written.prefill["block_size"] == 32
    assert written.prefill["tensor_parallel"] == 4
    assert c.placement != replace(c, split=Split(2, Layout(4))).placement
