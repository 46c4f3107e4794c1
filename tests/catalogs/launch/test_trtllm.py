"""What the start command of TensorRT-LLM cannot say is a note: the retention that every request carries."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import Deployment
from catalogs.launch.writing.trtllm import trtllm_arguments


@pytest.mark.parametrize(
    ("kept", "call"),
    [
        (
            {"prompt_tokens": 4096, "duration_s": 60},
            "KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4096, 100, timedelta(seconds=60))])",
        ),
        ({"priority": 80}, "KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 80, None)], 80, None)"),
        (None, None),
    ],
)
def test_the_retention_of_requests_is_noted(kept: dict[str, int] | None, call: str | None) -> None:
    keys = {"model": "llama3.1-8b", "engine": "trtllm", "hardware": "h100", "kv_retention": kept}
    notes = trtllm_arguments(resolve(Deployment.model_validate(keys))).notes
    found = [note.partition(": ")[2] for note in notes if "kv_cache_retention_config" in note]
    assert found == ([] if call is None else [call])


def test_each_micro_batch_of_a_pipeline_gets_its_share_of_the_seats() -> None:
    keys = {"model": "llama3.1-8b", "engine": "trtllm", "hardware": "h100x4", "pipeline_parallel": 4}
    flags = dict(trtllm_arguments(resolve(Deployment.model_validate(keys | {"max_num_seqs": 256}))).flags)
    assert (flags["--pp_size"], flags["--max_batch_size"]) == ("4", "64")
