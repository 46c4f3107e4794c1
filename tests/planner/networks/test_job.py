"""Jobs as people write them, and one line for each that is wrong."""

from __future__ import annotations

import pytest

from catalogs.errors import InputError
from catalogs.networks.files import list_networks, load_network
from catalogs.networks.header import load_header
from planner.networks.job import PlannedJob, read_job, unit_of


def job(network: str, text: str | None = None, steps: int | None = None) -> PlannedJob:
    return read_job(load_network(network), text, steps)


@pytest.mark.parametrize(
    ("network", "text", "steps", "sizes"),
    [
        ("wan2.1-t2v-14b", "1280x720x81", 40, {"width": 1280, "height": 720, "frames": 81, "steps": 40}),
        ("wan2.1-t2v-14b", "1280 X 720 * 81", None, {"width": 1280, "height": 720, "frames": 81}),
        ("flux.1-dev", "1024×512", None, {"width": 1024, "height": 512}),
        ("flux.1-dev", "height=512,width=768,guidance=2", None, {"width": 768, "height": 512, "guidance": 2}),
        ("bert-large", "256", None, {"tokens": 256}),
        ("bert-large", "tokens=256, batch=4", None, {"tokens": 256, "batch": 4}),
        ("sam2.1-large", "8", None, {"frames": 8}),
        ("resnet50", None, None, {}),
        ("sapiens-1b", "4", None, {"batch": 4}),
    ],
)
def test_a_job_names_the_sizes_that_it_changes(
    network: str, text: str | None, steps: int | None, sizes: dict[str, int]
) -> None:
    assert job(network, text, steps).sizes == sizes


@pytest.mark.parametrize(
    ("network", "text", "steps", "message"),
    [
        ("wan2.1-t2v-14b", "1280x720", None, "has 3 extents (width x height x frames): got '1280x720'; nearest"),
        ("wan2.1-t2v-14b", "1281x725x82", None, "nearest valid choice: --job 1280x720x81"),
        ("wan2.1-t2v-14b", "1280x720x81", 0, "nearest valid choice: --job 1280x720x81 --steps 1"),
        ("wan2.1-t2v-14b", "hight=720", None, "has no such size: got 'hight=720'; nearest valid choice: height"),
        ("wan2.1-t2v-14b", "steps=4", 4, "steps are given twice"),
        ("wan2.1-t2v-14b", "720p", None, "a job is WIDTHxHEIGHT, WIDTHxHEIGHTxFRAMES or NAME=VALUE"),
        ("wan2.1-t2v-14b", "height=tall", None, "height is a whole number"),
        ("wan2.1-t2v-14b", "height=720,height=480", None, "a size is given twice"),
        ("sam2.1-large", "1024x1024", None, "was traced at one image size, so a job has only: batch, frames"),
        ("resnet50", None, 20, "resnet50 has no steps"),
        ("bert-large", "1024", None, "nearest valid choice: --job tokens=512"),
    ],
)
def test_a_wrong_job_is_one_line_with_the_nearest(
    network: str, text: str | None, steps: int | None, message: str
) -> None:
    with pytest.raises(InputError) as error:
        job(network, text, steps)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_nearest_job_of_a_message_is_valid() -> None:
    network = load_network("wan2.1-t2v-14b")
    with pytest.raises(InputError) as error:
        read_job(network, "1279x725x80", None)
    nearest = str(error.value.nearest).removeprefix("--job ")
    assert job("wan2.1-t2v-14b", nearest).sizes == {"width": 1280, "height": 720, "frames": 81}


@pytest.mark.parametrize(
    ("network", "unit", "items"),
    [("flux.1-dev", "image", 1), ("open-sora-2.0", "video", 1), ("bert-base", "embedding", 1), ("resnet50", "image", 1),
     ("sam2.1-large", "image", 1), ("whisper-tiny-encoder", "recording", 1)],
)  # fmt: skip
def test_what_a_job_yields(network: str, unit: str, items: int) -> None:
    found = job(network)
    assert (found.unit, found.items) == (unit, items)
    assert job(network, "batch=3").items == 3


def test_every_family_of_the_catalog_yields_something() -> None:
    families = {load_header(name).family for name in list_networks()}
    assert [family for family in families if unit_of(family) == "job"] == []
