"""Who schedules: one class for every set of rules, and a refusal in one line where no class does what they ask for."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from catalogs.deployments.resolution.compatibility import INCOMPATIBLE, SUPPORTING_POLICIES
from catalogs.engines.files import list_engines, load_engine
from catalogs.errors import InputError
from simulator.cache.encoder_cache import EncoderLimits
from simulator.cache.lora_slots import LoraRules
from simulator.cache.offload import OffloadRules, SwapRules
from simulator.core.speculation import SpeculationRules
from simulator.schedulers.data_parallel import Lockstep
from simulator.schedulers.registry import COMBINED, POLICIES, VARIANTS, make_scheduler, scheduler_class
from simulator.schedulers.speculative import Speculating
from simulator.schedulers.vllm.v1_lora import LoraV1
from tests.simulator.worlds import rules

ASKED: dict[str, Any] = {
    "encoder_tokens": 8,
    "encoder_limits": EncoderLimits(8, 8),
    "speculation": SpeculationRules(2, (0.5,)),
    "lora": LoraRules(1, 1, 2),
    "offload": OffloadRules(8, 0.5),
    "swap": SwapRules(8, 0.5),
}
#: What deployment.yaml calls them (catalogs/deployments/resolution/compatibility.py).
PART_OF = {
    "encoder_tokens": "encoder",
    "encoder_limits": "multimodal",
    "speculation": "speculative",
    "lora": "lora",
    "offload": "kv_offload",
    "swap": "swap",
}
RANKS: dict[str, Any] = {"attention_ranks": 2, "rank_dispatch": "round_robin"}
WHOLE: dict[str, Any] = {"chunked_prefill": False, "prefix_caching": False}  # what an encoder needs


def test_every_variant_is_looked_at_here() -> None:
    assert set(ASKED) == set(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_variant_has_its_own_class_or_is_refused(name: str, policy: str) -> None:
    asked = rules(policy=policy, **WHOLE, **{name: ASKED[name]})
    known = VARIANTS[name].by_policy.get(policy)
    if known is None:
        with pytest.raises(InputError, match=f"simulated only for .*: got '{policy}'"):
            scheduler_class(asked)
        return
    assert issubclass(known, POLICIES[policy])
    assert type(make_scheduler(asked)) is known


APART = [names for names in combinations(VARIANTS, 2) if names not in COMBINED]


@pytest.mark.parametrize("names", COMBINED)
def test_a_combination_has_a_class_of_both_kinds(names: tuple[str, str]) -> None:
    for policy in POLICIES:
        asked = rules(policy=policy, **{name: ASKED[name] for name in names})
        made = COMBINED[names].by_policy.get(policy)
        if made is None:
            with pytest.raises(InputError, match="is simulated only for"):
                make_scheduler(asked)
            continue
        assert type(make_scheduler(asked)) is made
        assert issubclass(made, Speculating)
        assert issubclass(made, LoraV1)


@pytest.mark.parametrize("names", APART)
def test_no_two_others_are_together(names: tuple[str, str]) -> None:
    for policy in POLICIES:
        with pytest.raises(InputError, match="is not simulated together with"):
            make_scheduler(rules(policy=policy, **{name: ASKED[name] for name in names}))


@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_in_lockstep_and_pipelines(name: str) -> None:
    (policy, *_), sound = VARIANTS[name].by_policy, WHOLE | {name: ASKED[name]}
    ranks = rules(policy=policy, **sound, **RANKS)
    if VARIANTS[name].in_lockstep:
        made = make_scheduler(ranks)
        assert isinstance(made, Lockstep)
        assert {type(rank) for rank in made.ranks} == {scheduler_class(ranks)}
    else:
        with pytest.raises(InputError, match="not simulated with ranks in lockstep"):
            make_scheduler(ranks)
    with pytest.raises(InputError, match="allows only one batch in flight: got 'pipeline_parallel: 2'"):
        make_scheduler(rules(policy=policy, pipeline_stages=2, **sound))


def test_ranks_in_lockstep_are_no_pipeline() -> None:
    with pytest.raises(InputError, match="allows only one batch in flight"):
        make_scheduler(rules(pipeline_stages=2, **RANKS))


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(InputError, match="got 'vllm-v2'; nearest valid choice: vllm-v"):
        scheduler_class(rules(policy="vllm-v2"))


def test_the_catalog_refuses_what_nobody_schedules() -> None:
    """What an engine's policy is said to know is what a class exists for."""
    assert VARIANTS.keys() == PART_OF.keys()
    for name, part in PART_OF.items():
        if part in SUPPORTING_POLICIES:
            assert set(SUPPORTING_POLICIES[part]) == set(VARIANTS[name].by_policy)
    engines = [load_engine(name) for name in list_engines(supported_only=True)]
    assert {e.policy for e in engines if e.speculates} == set(VARIANTS["speculation"].by_policy)


@pytest.mark.parametrize("names", APART)
def test_two_variants_are_apart_in_the_catalog_too(names: tuple[str, str]) -> None:
    """Or no engine knows both."""
    first, second = (PART_OF[name] for name in names)
    policies = [set(VARIANTS[name].by_policy) for name in names]
    assert (
        not policies[0] & policies[1] or second in INCOMPATIBLE.get(first, ()) or first in INCOMPATIBLE.get(second, ())
    )
