"""Deployment files of networks: the key `model` decides, and bad keys are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from catalogs.deployments.network_deployment import (
    NetworkDeployment,
    as_network_deployment,
    is_network,
    load_any_deployment,
    refuse_misspelled_network,
)
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError


def written(text: str, folder: Path) -> Path:
    path = folder / "deployment.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_model_decides(tmp_path: Path) -> None:
    network = load_any_deployment(written("model: sam2.1-large\nhardware: l40sx4\nreplicas: 4\n", tmp_path))
    language = load_any_deployment(written("model: llama3.1-8b\nhardware: l40s\n", tmp_path))
    assert isinstance(network, NetworkDeployment)
    assert isinstance(language, Deployment)
    assert (network.replicas, network.engine, network.accelerators_per_replica) == (4, "torch", 1)


def test_a_name_that_states_a_kind_is_refused_with_the_networks_of_that_kind() -> None:
    with pytest.raises(InputError, match="unknown model") as embedding:
        refuse_misspelled_network("Qwen/Qwen3-Embedding-8B")
    assert embedding.value.nearest is None
    assert "for text embedding are" in str(embedding.value)
    assert "bge-m3" in str(embedding.value)
    with pytest.raises(InputError, match="nearest valid choice: e5-large-v2"):
        refuse_misspelled_network("e5-large-v3")
    with pytest.raises(InputError, match="the catalog has no network for speech synthesis"):
        refuse_misspelled_network("Qwen/Qwen3-TTS-1.7B")


def test_names_of_language_models_and_ids_are_not_refused_as_networks() -> None:
    for name in ("llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "stabilityai/stable-diffusion-9"):
        refuse_misspelled_network(name)


def test_a_name_of_both_is_the_language_model() -> None:
    assert is_network("SAM2.1-Large")
    assert is_network("my/net.yaml")
    assert not is_network("whisper-large-v3")
    assert not is_network("t5-small")
    assert not is_network("meta-llama/Llama-3.1-8B")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: sam2.1-large\nhardware: l40s\ntensor_parallel: 2", "for language models: got 'tensor_parallel'"),
        ("model: llama3.1-8b\nhardware: l40s\nulysses: 2", "for networks: got 'ulysses'"),
        ("model: sam2.1-lrge\nhardware: l40s", "nearest valid choice: sam2.1-large"),
        ("model: sam2.1-large\nhardware: l40s\nengine: tritn", "nearest valid choice: triton"),
        ("model: sam2.1-large\nhardware: l40s\nengine: 7", "torch, triton, sglang-diffusion"),
        ("model: sam2.1-large\nhardware: l40s\nmax_batches: 2", "nearest valid choice: max_batch"),
        ("model: sam2.1-large\nhardware: l40s\nmax_batch: 0", "max_batch"),
        ("model: sam2.1-large\nhardware: l40s\nmax_batch: '4'", "max_batch"),
        ("model: sam2.1-large\nhardware: l40s\njob: {height: 0}", "height"),
        ("model: sam2.1-large", "key 'hardware' is missing"),
    ],
)
def test_bad_files_are_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_any_deployment(written(text, tmp_path))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"engine": "torch", "preferred_batches": [4], "max_batch": 4}, "torch has no preferred_batches"),
        ({"engine": "torch", "queue_delay_s": 0.1}, "engine: sglang-diffusion, triton"),
        ({"engine": "sglang-diffusion", "instances": 2}, "engine: triton"),
        ({"engine": "sglang-diffusion", "timeout_s": 2.0}, "engine: triton"),
        ({"engine": "triton", "preferred_batches": [8], "max_batch": 4}, "at most max_batch"),
        ({"engine": "triton", "default_priority": 2}, "priorities: 2"),
        ({"engine": "triton", "priorities": 2, "default_priority": 3}, "nearest valid choice: 2"),
        ({"engine": "triton", "timeout_action": "delay"}, "needs a timeout"),
        ({"engine": "triton", "further_models": ["bert-base"]}, "engine: torch"),
        ({"further_models": ["bert-base", "bert-base"]}, "once"),
        ({"session_state": {"mib": 1.0, "resident": 2}, "max_batch": 4}, "resident"),
    ],
)
def test_keys_fit_the_engine_and_each_other(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        as_network_deployment({"model": "sam2.1-large", "hardware": "l40s", **keys}, "deployment")
    assert words in str(error.value)
