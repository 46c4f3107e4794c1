"""The key api_server_count: its default, its limits, and its flag."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.launch.command import serve_arguments


def written(**keys: object) -> Deployment:
    return Deployment.model_validate({"model": "llama3.1-8b", "hardware": "h100", **keys})


def test_the_default_is_one_for_each_data_parallel_rank() -> None:
    assert resolve(written()).api_server_count == 1
    ranks = {"model": "qwen3-30b-a3b", "hardware": "h100x4", "data_parallel": 4, "expert_parallel": True}
    found = resolve(written(**ranks))
    assert found.api_server_count == 4
    assert "--api-server-count" not in serve_arguments(found).words
    one = serve_arguments(resolve(written(**ranks, api_server_count=1))).words
    assert one[one.index("--api-server-count") + 1] == "1"


def test_the_resolved_number_is_shown() -> None:
    deployment = written(api_server_count=3)
    assert resolve(deployment).filled_in(deployment)["api_server_count"] == 3
    assert resolve(written()).filled_in(written())["api_server_count"] == 1


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "vllm-v0"])
def test_an_engine_with_one_process_refuses_more(engine: str) -> None:
    with pytest.raises(InputError, match="one API server process") as caught:
        resolve(written(engine=engine, api_server_count=2))
    assert caught.value.nearest == "1"


def test_each_process_needs_a_core() -> None:
    """A DGX H100 has 112 cores for 8 accelerators: 14 each, of which engine core and worker take two."""
    assert resolve(written(api_server_count=12)).api_server_count == 12
    with pytest.raises(InputError, match="CPU core") as caught:
        resolve(written(api_server_count=13))
    assert caught.value.nearest == "12"
    assert resolve(written(hardware="l4", api_server_count=40)).api_server_count == 40  # its cores are not known
