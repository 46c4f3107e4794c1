"""The device that the start command of the server of padded batches names, by the maker of the accelerator."""

from __future__ import annotations

import pytest

from catalogs.deployments.resolve import resolve
from catalogs.deployments.schema import deployment_of_keys
from catalogs.launch.writing.transformers_static import transformers_static_arguments


@pytest.mark.parametrize(
    ("hardware", "device", "starts"),
    [("h100", "cuda", True), ("mi300x", "cuda", True), ("b60", "xpu", True), ("tpu-v5e", "xla", False)],
)
def test_the_device_is_that_of_the_maker(hardware: str, device: str, starts: bool) -> None:
    keys = {"model": "t5-small", "engine": "transformers-static", "hardware": hardware}
    found = transformers_static_arguments(resolve(deployment_of_keys(keys, "test")))
    assert dict(found.flags)["--device"] == device
    assert any("does not start" in note for note in found.notes) is not starts
