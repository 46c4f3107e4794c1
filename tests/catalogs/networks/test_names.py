"""The names of networks: what people write, one network for each spelling, and none that means a language model."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.models.names import load_names as load_model_names
from catalogs.networks.files import find_network, list_networks, load_network
from catalogs.networks.names import NetworkNames, load_names, plain_name

NETWORKS = list_networks()
SPELLINGS = [(name, network) for network in NETWORKS for name in (network, *load_names().of(network))]


@pytest.mark.parametrize(
    ("written", "network"),
    [
        ("sam2.1-large", "sam2.1-large"),
        ("SAM 2.1 large", "sam2.1-large"),
        ("facebook/sam2.1-hiera-large", "sam2.1-large"),
        ("sam2.1_hiera_large", "sam2.1-large"),
        ("bert-base-uncased", "bert-base"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "stable-diffusion-xl"),
        ("SDXL", "stable-diffusion-xl"),
        ("flux", "flux.1-dev"),
        ("Open-Sora", "open-sora-2.0"),
        ("Wan-AI/Wan2.1-T2V-14B", "wan2.1-t2v-14b"),
        ("timm/resnet50.a1_in1k", "resnet50"),
        ("timm/resnet50.tv2_in1k", "resnet50"),
        ("timm.resnet50", "resnet50"),
        ("ResNet-50", "resnet50"),
        ("resnet50.a1_in1k", "resnet50"),
        ("microsoft/resnet-50", "resnet50"),
        ("someone/resnet-50", None),
        ("facebook/resnet50.a1_in1k", None),
        ("meta-llama/Llama-3.1-8B", None),
        ("", None),
    ],
)
def test_a_network_is_found_by_what_people_write(written: str, network: str | None) -> None:
    assert find_network(written) == network


def test_every_listed_name_belongs_to_a_network_and_means_it() -> None:
    assert set(load_names().others) <= set(NETWORKS)
    twice = [name for name, count in Counter(name.lower() for name, _ in SPELLINGS).items() if count > 1]
    assert not twice
    assert [(name, find_network(name)) for name, _ in SPELLINGS] == SPELLINGS


def test_no_network_has_the_name_of_a_language_model() -> None:
    models = {name.lower() for name in load_model_names().all_names()}
    assert not [name for name, _ in SPELLINGS if name.lower() in models]


@given(st.sampled_from(SPELLINGS), st.sampled_from("-_ "), st.booleans())
def test_case_and_separators_do_not_matter(spelling: tuple[str, str], separator: str, upper: bool) -> None:
    name, network = spelling
    changed = name.rsplit("/", 1)[-1].replace("-", separator).replace("_", separator)
    same = {other for spelled, other in SPELLINGS if plain_name(spelled) == plain_name(name)}
    if same == {network}:
        assert find_network(changed.upper() if upper else changed) == network


def test_a_name_of_several_networks_is_one_line() -> None:
    names = NetworkNames({"a-1": ("x/big-net",), "b-1": ("y/Big_Net",)})
    assert names.find("y/big net", ["a-1", "b-1"]) == "b-1"
    with pytest.raises(InputError, match=re.escape("the name could mean a-1, b-1: got 'big.net'")):
        names.find("big.net", ["a-1", "b-1"])
    assert (names.hf_id("a-1"), names.hf_id("c")) == ("x/big-net", None)


@pytest.mark.parametrize(
    ("written", "nearest"), [("sam2.1", "sam2.1-"), ("berd-base", "bert-base"), ("stable-difusion-xl", "stable-dif")]
)
def test_an_unknown_name_has_the_nearest_network(written: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"nearest valid choice: {nearest}.*see catalog list networks"):
        load_network(written)
