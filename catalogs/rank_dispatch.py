"""How requests come to the data-parallel ranks of a replica: the engine's way, or what a deployment asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalogs.combinations import Asked, beside_one_scheduler
from catalogs.engines import RankDispatch
from catalogs.errors import InputError

if TYPE_CHECKING:
    from catalogs.deployment import Layout


def rank_dispatch_of(asked: Asked, layout: Layout) -> RankDispatch | None:
    """None where a replica has one rank, which is balanced.

    Raises InputError for a key without ranks, or where only one scheduler for all of them is simulated: beside parts
    that know no other way, and for engines without ranks of their own.
    """
    way, engine = asked.written.rank_dispatch, asked.engine
    if layout.data_parallel == 1:
        if way not in (None, "balanced"):
            rule = "rank_dispatch is for ranks that step together: data_parallel of a mixture-of-experts model"
            raise InputError(rule, way, "rank_dispatch: null")
        return None
    beside = beside_one_scheduler(asked)
    alone = f"beside {beside}" if beside else f"for {engine.name}" if engine.rank_dispatch == "balanced" else ""
    if way not in (None, "balanced") and alone:
        raise InputError(f"ranks are simulated as one scheduler {alone}", f"rank_dispatch: {way}", "balanced")
    return way or ("balanced" if alone else engine.rank_dispatch)
