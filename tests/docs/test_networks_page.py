"""The page on networks: its commands are requests, and its outputs have the labels of the screens."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from catalogs.deployments.network_deployment import is_network
from planner.networks.job import read_job
from planner.networks.request import network_request
from planner.problem.request_keys import network_keys

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
SCREEN = "".join(
    (ROOT / file).read_text(encoding="utf-8")
    for file in (
        "planner/networks/screen.py",
        "planner/sections/refusal_words.py",
        "planner/sections/region_prices.py",
    )
)


def outputs(text: str) -> list[str]:
    return re.findall(r"^```\n(Request .*?)^```$", text, re.MULTILINE | re.DOTALL)


def unknown_labels(text: str) -> set[str]:
    labels = {
        label.strip() for block in outputs(text) for label in re.findall(r"^([A-Z].{10}) (?=\S)", block, re.MULTILINE)
    }
    return {label for label in labels if f'"{label}"' not in SCREEN}


def test_outputs_have_the_labels_of_the_screens() -> None:
    assert len(outputs(PAGE)) == 2
    assert unknown_labels(PAGE) == set()
    assert unknown_labels(PAGE.replace("\nCandidates  ", "\nRuled out   ")) == {"Ruled out"}


@pytest.mark.parametrize("command", re.findall(r"^\$ plan (--model .*)$", PAGE, re.MULTILINE))
def test_the_commands_of_the_page_are_requests(command: str) -> None:
    names = {key.option: key.name for key in network_keys().values()}
    words = shlex.split(command)
    given = dict(zip(words[::2], words[1::2], strict=True))
    request = network_request({names[option]: value for option, value in given.items()} | {"steps": None})
    assert is_network(request.model)
    from catalogs.networks.files import load_network

    read_job(load_network(request.model), request.job, int(given["--steps"]) if "--steps" in given else None)
