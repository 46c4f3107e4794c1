"""The stages that a request passes, by the roles of the pools of its model, its items, and the length of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from catalogs.deployments.layout import Role
from catalogs.errors import InputError
from simulator.cluster.cluster import Cluster, RunOptions
from simulator.cluster.compiled import Pool
from simulator.cluster.disaggregation import DisaggregationPolicy
from simulator.cluster.request_paths import RequestPaths
from simulator.cluster.routers.base import ReplicaView
from simulator.cluster.routers.registry import make_router
from simulator.cluster.routing_stage import RoutingStage
from simulator.core.request import Request
from tests.simulator.cluster.test_encoder_pool import encoders, language
from tests.simulator.schedulers.test_media_batches import imaged
from tests.simulator.worlds import Linear, requests, rules

#: Prompts of 4 and of 40 tokens.
PROMPTS = (4, 40)


def stage() -> RoutingStage:
    return RoutingStage(make_router("round_robin", ReplicaView(False, None)))


def paths(pools: list[Pool], models: Sequence[int] | None = None, local_tokens: int = 0) -> RequestPaths:
    """The paths of two requests; each pool has one replica, which its stage knows."""
    cluster = Cluster(pools, requests([0.0] * 2, list(PROMPTS), [2, 2]), RunOptions())
    found = RequestPaths(cluster.pools, models, PROMPTS, DisaggregationPolicy(max_local_tokens=local_tokens), stage)
    for replica in cluster.replicas:
        found.stage_of(replica).add(replica, cluster.pools[replica.pool])
    return found


def roles(found: list[RoutingStage]) -> list[list[str]]:
    return [[pool.pool.role for pool in each.pools.values()] for each in found]


def of_roles(*names: Role) -> list[Pool]:
    return [Pool(rules(), Linear(), 1, role) for role in names]


def test_two_equal_pools_are_one_stage() -> None:
    found = paths(of_roles("both", "both"))
    assert roles(found.stages) == [["both", "both"]]
    assert found.whole(Request(0, 4)) == found.after_encoders(0) == found.stages


def test_a_short_prompt_stays_with_a_decode_replica() -> None:
    found = paths(of_roles("prefill", "decode"), local_tokens=4)
    assert roles(found.whole(Request(0, 4))) == [["decode"]]
    assert roles(found.whole(Request(1, 40))) == [["prefill"], ["decode"]]


def test_only_requests_with_items_pass_the_encoders() -> None:
    found = paths([encoders(), language()])
    seeing = Request(0, 4)
    media = imaged(requests([0.0], [4], [2]), [[0]]).media
    assert media is not None
    seeing.media = media.of_request(0)
    assert roles(found.whole(seeing)) == [["encode"], ["both"]]
    assert roles(found.whole(Request(1, 40))) == [["both"]]
    assert roles(found.after_encoders(0)) == [["both"]]


def test_each_model_has_its_own_stages() -> None:
    second = [replace(pool, model=1) for pool in of_roles("prefill", "decode")]
    found = paths([*of_roles("both"), *second], models=(1, 0))
    assert roles(found.whole(Request(0, 4))) == [["prefill"], ["decode"]]
    assert roles(found.whole(Request(1, 40))) == [["both"]]
    assert (found.model(0), found.model(1), found.encoders(0)) == (1, 0, None)


@pytest.mark.parametrize(
    ("names", "rule", "nearest"),
    [
        (("encode",), "an encoder pool needs replicas that run the language model", "both"),
        (("prefill",), "a model needs both prefill and decode pools, or neither", "prefill, decode"),
        (("both", "decode"), "a model needs both prefill and decode pools, or neither", "prefill, decode"),
    ],
)
def test_a_role_that_lacks_its_counterpart_is_refused(names: tuple[Role, ...], rule: str, nearest: str) -> None:
    with pytest.raises(InputError) as refused:
        paths(of_roles(*names))
    assert (refused.value.rule, refused.value.nearest) == (rule, nearest)
