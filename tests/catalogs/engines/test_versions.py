"""Versions of engines as numbers: their order, and texts that name no version or a huge one."""

from __future__ import annotations

import math

from catalogs.engines.versions import version_in_minors


def test_versions_compare_as_numbers() -> None:
    assert (
        version_in_minors("0.9.2") < version_in_minors("0.10") < version_in_minors("0.10.1") < version_in_minors("1.0")
    )
    assert math.isnan(version_in_minors("nightly"))


def test_a_version_of_many_digits_is_no_error() -> None:
    assert version_in_minors("9" * 5000 + ".1") == math.inf
