"""The fitted families, by name: the one place that knows them all."""

from __future__ import annotations

from calibration.family import FamilyModel

FAMILIES: dict[str, type[FamilyModel]] = {}
