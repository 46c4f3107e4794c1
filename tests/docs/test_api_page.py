"""The page of the Python interface lists what each package exports, in alphabetical order."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs/api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["catalogs", "calibration", "simulator", "planner"])
def test_the_page_lists_what_the_package_exports(package: str) -> None:
    listed = re.findall(rf"^::: {package}\.(\w+)$", PAGE, re.MULTILINE)
    assert listed == sorted(importlib.import_module(package).__all__)
    assert len(listed) >= 10
