"""The tour of the code agrees with the tree: its sub-packages, their order, and every path in it."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOUR = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
PACKAGES = ["catalogs", "calibration", "simulator", "planner"]
PATH = re.compile(r"`((?:catalogs|calibration|simulator|planner|tests|tools|benchmarks)/[\w./-]+)`")


def sub_packages(package: str) -> list[str]:
    """Return the sub-packages in the order of the import contract."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    return contracts[f"importlinter:contract:{package}"]["layers"].split()


def listed(page: str, package: str) -> list[str]:
    """Return the first cells of the table under the heading of the package."""
    section = page.split(f"### `{package}`\n", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def missing_paths(page: str) -> list[str]:
    """Return the paths of the page that the tree does not have."""
    return [path for path in PATH.findall(page) if not (ROOT / path).exists()]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tour_lists_every_sub_package_in_order(package: str) -> None:
    assert listed(TOUR, package) == sub_packages(package)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_contract_names_every_sub_package(package: str) -> None:
    folders = {file.parent.name for file in (ROOT / package).glob("*/__init__.py")}
    assert folders <= set(sub_packages(package))


def test_every_path_of_the_tour_exists() -> None:
    assert len(PATH.findall(TOUR)) > 50
    assert missing_paths(TOUR) == []


def test_a_missing_sub_package_or_path_would_be_seen() -> None:
    page = TOUR.replace("| `io` |", "| `files` |").replace("catalogs/hardware/specs.py", "catalogs/hardware/spec.py")
    assert listed(page, "catalogs") != sub_packages("catalogs")
    assert missing_paths(page) == ["catalogs/hardware/spec.py"]


def test_every_walk_is_a_numbered_list_of_files() -> None:
    walks = TOUR.split("## Four walks\n", 1)[1].split("\n## ", 1)[0].split("\n### ")[1:]
    assert len(walks) == 4
    for walk in walks:
        steps = re.findall(r"^(\d+)\. `[\w./-]+\.py`: .", walk, re.MULTILINE)
        assert [int(number) for number in steps] == list(range(1, len(steps) + 1))
        assert len(steps) >= 10
