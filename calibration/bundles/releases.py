"""The operator tables of engine releases, and the choice of the release that prices the steps of an engine.

The folder of an accelerator holds its bundle, and bundles of other engine releases in HARDWARE/releases/ENGINE-VERSION.
A release holds only what was timed in it. Other releases of the same engine lend the rest, and the bundle of the
accelerator lends what none of them timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from calibration.bundles.files import JSON_NAME, Release
from calibration.families.base import FamilyModel
from catalogs.engines.versions import version_in_minors

#: Folder of the releases within the folder of an accelerator.
RELEASES_FOLDER: Final = "releases"


def releases_in(folder: Path) -> dict[Release, Path]:
    """Return the folder of each release of an accelerator, given the `folder` of its bundle."""
    found = {}
    for file in sorted((folder / RELEASES_FOLDER).glob(f"*/{JSON_NAME}")):
        engine, _, version = file.parent.name.partition("-")
        found[Release(engine, version)] = file.parent
    return found


def by_distance(known: Iterable[Release], wanted: Release) -> list[Release]:
    """Return the releases of the wanted engine, that with the nearest version first, the older of two before."""
    aim = version_in_minors(wanted.version)
    own = [r for r in known if r.engine == wanted.engine]
    return sorted(own, key=lambda r: (abs(version_in_minors(r.version) - aim), version_in_minors(r.version)))


def nearest_release(known: Iterable[Release], wanted: Release) -> Release | None:
    """Return the release of the wanted engine with the nearest version, the older of two; None without any."""
    return next(iter(by_distance(known, wanted)), None)


@runtime_checkable
class Joinable(Protocol):
    """A model that takes what it lacks from a model of the same kind and accelerator."""

    def joined(self, lender: Any) -> FamilyModel:
        """Return the model with the dtypes, stages or kinds that it lacks from the lender."""
        ...


def joined(own: Mapping[str, FamilyModel], lender: Mapping[str, FamilyModel]) -> dict[str, FamilyModel]:
    """Return the models of a release, with what it lacks from the lender: families, dtypes, collectives."""
    models = {**lender, **own}
    for family in own.keys() & lender.keys():
        mine, theirs = own[family], lender[family]
        if isinstance(mine, Joinable) and type(mine) is type(theirs):
            models[family] = mine.joined(theirs)
    return models
