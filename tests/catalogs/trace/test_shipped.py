"""The shipped networks: they read, they have their source and default job, and their recipes make the same files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from catalogs.networks.files import FOLDER, load_network, network_text, read_network
from catalogs.networks.names import NAMES as INDEX
from catalogs.trace.recipes import check_inputs, shipped_recipes

ROOT = Path(__file__).resolve().parents[3]
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path != INDEX)


def test_every_recipe_has_its_file_and_every_file_its_recipe() -> None:
    assert sorted(shipped_recipes()) == NAMES
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_network_reads_and_its_stages_are_plausible(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    network = read_network(path)
    assert network_text(network) == path.read_text(encoding="utf-8")
    assert (network.name, bool(network.source)) == (name, True)
    assert sorted(stage.name for stage in network.stages) == sorted(shipped_recipes()[name].stages)
    for stage, sized in zip(network.stages, network.at(), strict=True):
        weights = sum(op.weights * op.times for op in sized.operators)
        assert sized.flops > 0
        # Every parameter is read once, but for tables, of which rows are read, and layers that run several times.
        assert weights > 0.2 * stage.parameters, stage.name
        largest = max(op.written_bytes for op in sized.operators)
        assert (
            largest <= sized.peak_activation_bytes <= sum(op.written_bytes * op.times for op in sized.operators) * 1.5
        )
        assert not stage.notices


@pytest.mark.parametrize("name", NAMES)
def test_more_work_takes_more_operations(name: str) -> None:
    network = load_network(name)
    base = sum(stage.runs * stage.flops for stage in network.at())
    for size in network.sizes:
        if size.maximum is None:
            larger = network.at({size.name: size.default + 2 * size.multiple_of})
            assert sum(stage.runs * stage.flops for stage in larger) > base, size.name


#: Multiply-adds for one input as published: torchvision and timm model tables, and the papers.
PUBLISHED_GMACS = {
    "resnet50": 4.1,
    "vit_base_patch16_224": 17.6,
    "vit_large_patch16_224": 61.6,
    "convnext_base": 15.4,
    "swin_base_patch4_window7_224": 15.5,
    "mobilenetv3_large_100": 0.22,
}


@pytest.mark.parametrize("name", sorted(set(PUBLISHED_GMACS) & set(NAMES)))
def test_the_operations_of_known_networks_are_the_published_ones(name: str) -> None:
    assert load_network(name).at()[0].flops / 2e9 == pytest.approx(PUBLISHED_GMACS[name], rel=0.03)


def test_the_inputs_of_every_recipe_name_sizes() -> None:
    for recipe in shipped_recipes().values():
        for stage in recipe.stages.values():
            assert check_inputs(stage, recipe.sizes) <= set(recipe.sizes)


def test_the_example_of_the_page_gives_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from catalogs.cli.main import main

    page = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ catalog (trace .*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 0
    network = read_network(tmp_path / "my-vit.yaml")
    one, many = network.at()[0], network.at({"batch": 32})[0]
    shown = f"{network.parameters / 1e6:.1f} million parameters, {sum(op.times for op in one.operators)} launches"
    assert shown in page
    assert f"{one.flops / 1e9:.1f} GFLOP for one image" in page
    assert f"# {many.flops / 1e9:.1f} GFLOP, {many.peak_activation_bytes / 2**20:.1f} MiB" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_recipe_makes_the_shipped_file(name: str) -> None:
    packages = {stage.module.partition(".")[0] for stage in shipped_recipes()[name].stages.values()}
    if "catalogs" in packages:  # catalogs.trace.library_parts
        packages |= {"diffusers", "torchvision"}
    for package in sorted(packages):
        pytest.importorskip(package)
    from catalogs.trace.trace import trace_network

    found, shipped = trace_network(name, shipped_recipes()[name]), load_network(name)
    if found.traced_with != shipped.traced_with:
        pytest.skip(f"traced with {shipped.traced_with}, here is {found.traced_with}")
    assert found == shipped
