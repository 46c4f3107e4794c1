"""The key `queue` of deployment.yaml, and what engines insist on."""

from __future__ import annotations

from typing import Any

import pytest

from catalogs.deployments.queueing import FCFS
from catalogs.deployments.resolve import resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError


def made(engine: str = "vllm", **keys: Any) -> ResolvedDeployment:
    return resolve(Deployment(model="llama-2-7b", hardware="a100-80gb", engine=engine, **keys))


def refused(engine: str = "vllm", **keys: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        made(engine, **keys)
    return caught.value


def test_no_queue_is_first_come_first_served_without_limits() -> None:
    assert made().queueing == FCFS
    filled = made().filled_in(Deployment(model="llama-2-7b", hardware="a100-80gb"))
    assert filled["queue"]["order"] == "fcfs"
    assert filled["queue"]["max_waiting"] is None


@pytest.mark.parametrize(
    ("engine", "queue", "nearest"),
    [
        ("vllm", {"oder": "fcfs"}, "order"),
        ("vllm", {"order": "prefix"}, "fcfs, priority, deadline"),
        ("sglang", {"order": "priority"}, "fcfs, prefix"),
        ("orca", {"order": "deadline"}, "fcfs"),
        ("vllm", {"max_delay_s": 0.1}, "engine: triton"),
        ("fastertransformer", {"preferred_batch_sizes": [4]}, "engine: triton"),
        ("triton", {"preferred_batch_sizes": [4, 64]}, "32"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(engine: str, queue: dict[str, object], nearest: str) -> None:
    assert refused(engine, queue=queue).nearest == nearest


@pytest.mark.parametrize("queue", [{"max_waiting": 0}, {"timeout_s": 0}, {"too_long": "cut"}, {"max_delay_s": -1}])
def test_values_out_of_range_are_refused(queue: dict[str, object]) -> None:
    assert next(iter(queue)) in str(refused("triton", queue=queue))


def test_orders_and_waiting_batches_where_engines_have_them() -> None:
    assert made(queue={"order": "deadline"}).queueing.order == "deadline"
    assert made("sglang", queue={"order": "prefix"}).queueing.order == "prefix"
    waiting = made("triton", queue={"order": "priority", "max_delay_s": 0.1, "preferred_batch_sizes": [4, 8]})
    assert waiting.queueing.preferred_batch_sizes == (4, 8)


def test_vllm_v0_holds_the_longest_prompt_in_a_step() -> None:
    assert made("vllm-v0").limits.max_num_batched_tokens == 4096
    assert made("vllm-v0", max_model_len=1000).limits.max_num_batched_tokens == 2048
    assert refused("vllm-v0", max_num_batched_tokens=2048).nearest == "4096"
    assert made("vllm", max_num_batched_tokens=2048).limits.max_num_batched_tokens == 2048


@pytest.mark.parametrize(
    "engine", ["transformers-static", "pytorch", "fastertransformer", "orca", "sarathi", "vllm-v0"]
)
def test_engines_without_shared_prefixes_say_so(engine: str) -> None:
    assert refused(engine, prefix_caching=True).nearest == "false"
    assert not made(engine).limits.prefix_caching
