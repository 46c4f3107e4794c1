"""The header of a network file states what the whole file means, and a list reads no more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogs.errors import InputError
from catalogs.networks.files import list_networks, network_path, network_text, read_network
from catalogs.networks.header import NetworkHeader, load_header, stated_header

SMALL = ("vit_base_patch16_224", "bert-base", "t5-small-encoder")


@pytest.mark.parametrize("name", SMALL)
def test_the_header_equals_that_of_the_whole_file(name: str) -> None:
    assert stated_header(network_path(name)) == NetworkHeader.of(read_network(network_path(name)))


def test_every_shipped_file_states_its_header() -> None:
    assert [name for name in list_networks() if stated_header(network_path(name)) is None] == []


@pytest.mark.parametrize("change", [("default_job_flops", "a_comment"), ("    operators:\n", "    operators: # all\n")])
def test_a_file_of_another_form_is_read_as_a_whole(tmp_path: Path, change: tuple[str, str]) -> None:
    network = read_network(network_path("bert-base"))
    path = tmp_path / "own.yaml"
    old, new = change
    text = "".join(line for line in network_text(network).splitlines(True) if "default_job_flops" not in line)
    path.write_text(text if old == "default_job_flops" else network_text(network).replace(old, new))
    assert load_header(str(path)) == NetworkHeader.of(network)


def test_operators_at_the_indent_of_their_key_are_left_out_too(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    flat = network_text(read_network(network_path("vit_base_patch16_224")))
    head, _, body = flat.partition("    operators:\n")
    path.write_text(head + "    operators:\n" + "".join(line[2:] for line in body.splitlines(True)))
    assert stated_header(path) == NetworkHeader.of(read_network(path))


def test_a_header_that_differs_from_its_operators_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    network = read_network(network_path("bert-base"))
    stated = f"default_job_flops: {network.default_job_flops}"
    path.write_text(network_text(network).replace(stated, "default_job_flops: 7"))
    with pytest.raises(InputError, match="default_job_flops is the number") as error:
        read_network(path)
    assert error.value.nearest == str(network.default_job_flops)
