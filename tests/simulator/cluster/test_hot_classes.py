"""What is read in every step has fewer than 30 attributes: beyond, CPython 3.11 finds each more slowly."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.schema import Deployment
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool, compile_deployment
from simulator.schedulers.registry import POLICIES, VARIANTS, make_scheduler
from tests.simulator.schedulers.test_variants import ASKED, WHOLE
from tests.simulator.worlds import Linear, requests, rules

MOST = 29
DRAFTS = {"method": "eagle", "model": "head", "num_speculative_tokens": 3, "acceptance": 0.7}


@pytest.mark.parametrize("policy", POLICIES)
def test_schedulers(policy: str) -> None:
    assert len(vars(make_scheduler(rules(policy=policy)))) <= MOST


PAIRS = [(name, policy) for name, variant in VARIANTS.items() for policy in variant.by_policy]


@pytest.mark.parametrize(("name", "policy"), PAIRS)
def test_variants(name: str, policy: str) -> None:
    assert len(vars(make_scheduler(rules(policy=policy, **WHOLE, **{name: ASKED[name]})))) <= MOST


def test_clusters_replicas_and_lanes() -> None:
    cluster = Cluster([Pool(rules(), Linear())], requests([0.0], [1], [1]), RunOptions())
    (replica,) = cluster.replicas
    for each in (cluster, replica, replica.lanes[0]):
        assert len(vars(each)) <= MOST, type(each).__name__


@pytest.mark.parametrize("asked", [None, DRAFTS])
def test_costs_of_steps(asked: dict[str, Any] | None) -> None:
    made = compile_deployment(
        Deployment.model_validate({"model": "llama3.1-8b", "hardware": "h100", "speculative": asked})
    )
    assert len(vars(made.cost)) <= MOST
