"""What is simulated together: two tables, every row of which refuses in one line, and nothing beside them."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.resolution.compatibility import (
    FEATURES,
    INCOMPATIBLE,
    ONE_SCHEDULER,
    SUPPORTING_POLICIES,
    FeatureContext,
    check_compatibility,
)
from catalogs.deployments.schema import Deployment
from catalogs.engines.files import engine_file_names as engine_names
from catalogs.engines.files import list_engines, load_engine
from catalogs.errors import InputError
from catalogs.models.catalog import load_model

#: How each part is asked for.
KEYS: dict[str, dict[str, Any]] = {
    "encoder": {"model": "whisper-large-v3"},
    "text_encoder": {"model": "t5-small"},
    "speculative": {"speculative": {"method": "ngram", "num_speculative_tokens": 2, "acceptance": 0.5}},
    "lora": {"lora": {"adapters": 2}},
    "multimodal": {"multimodal": {}},
    "kv_offload": {"kv_offload": {"host_gib": 8.0}},
    "kv_pool": {"kv_offload": {"host_gib": 8.0, "shared": True}},
    "kv_retention": {"kv_retention": {"prompt_tokens": 4096}},
    "autoscaling": {"autoscaling": {"min_replicas": 1, "max_replicas": 2}},
    "swap": {"preemption": "swap"},
    "swap_space_gib": {"swap_space_gib": 4.0},
    "queue": {"queue": {"order": "priority"}},
    "pipeline_parallel": {"pipeline_parallel": 2},
    "data_parallel": {"data_parallel": 2},
    "context_parallel": {"context_parallel": 2},
    "decode_context_parallel": {"decode_context_parallel": 2},
    "ranks": {"data_parallel": 2, "model": "mixtral-8x7b"},
}
PAIRS = [(part, other) for part, others in INCOMPATIBLE.items() for other in others]


def asked(*parts: str, engine: str = "vllm") -> FeatureContext:
    keys: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100x8", "engine": engine}
    for part in parts:
        keys |= KEYS[part]
    return FeatureContext(Deployment.model_validate(keys), load_model(keys["model"]), load_engine(engine))


def engine_of(part: str) -> str:
    return next(iter(SUPPORTING_POLICIES.get(part, {"": "vllm"}).values()))


def test_the_tables_name_parts() -> None:
    assert set(KEYS) == set(FEATURES)
    assert {*INCOMPATIBLE, *SUPPORTING_POLICIES, *ONE_SCHEDULER} | {other for _, other in PAIRS} <= set(FEATURES)
    assert {engine for known in SUPPORTING_POLICIES.values() for engine in known.values()} <= set(engine_names())


@pytest.mark.parametrize("part", FEATURES)
def test_a_part_alone_is_found_and_said_as_it_is_written(part: str) -> None:
    alone = asked(part, engine=engine_of(part))
    check_compatibility(alone)
    found = FEATURES[part].found(alone)
    assert found is not None
    model = KEYS[part].get("model")
    assert found == model if "encoder" in part else found.split(":")[0] in Deployment.model_fields
    assert FEATURES[part].found(asked()) is None


@pytest.mark.parametrize(("part", "other"), PAIRS)
def test_what_is_apart_is_refused_with_what_to_leave_out(part: str, other: str) -> None:
    both = asked(part, other, engine=engine_of(part))
    with pytest.raises(InputError) as refused:
        check_compatibility(both)
    if other not in SUPPORTING_POLICIES or both.engine.policy in SUPPORTING_POLICIES[other]:
        said = f"got {FEATURES[other].found(both)!r}; nearest valid choice: {FEATURES[other].without}"
        assert str(refused.value).endswith(said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("part", SUPPORTING_POLICIES)
def test_other_engines_do_not_know_it(part: str) -> None:
    unknown = 0
    for engine in list_engines(supported_only=True):
        it = asked(part, engine=engine)
        if it.engine.policy in SUPPORTING_POLICIES[part]:
            check_compatibility(it)
        else:
            unknown += 1
            with pytest.raises(InputError, match=f"{FEATURES[part].words} is not simulated for .*{engine_of(part)}"):
                check_compatibility(it)
    assert unknown > 3
