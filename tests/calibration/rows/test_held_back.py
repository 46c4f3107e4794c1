"""Collectives that a host held back: compared with two ranks of the same machine, and continued by them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from calibration.families.collective import PCIE_SHARE, CollectiveModel
from calibration.operators.operators import Collective
from calibration.rows.physics_check import SLOWEST_RING, gate, held_back
from catalogs.hardware.catalog import parse_hardware

SIZES = 2.0 ** np.arange(8, 31)
FLOOR_S, BYTES_PER_S = 10e-6, 20e9


def ring(ranks: int, slower: float = 1.0, from_bytes: float = 0.0) -> pd.DataFrame:
    """All-reduces of a ring whose wire takes `slower` times as long for messages of `from_bytes` and more."""
    wire = 2.0 * (ranks - 1) / ranks * SIZES / BYTES_PER_S
    seconds = FLOOR_S + wire * np.where(from_bytes <= SIZES, slower, 1.0)
    return pd.DataFrame(
        {"kind": "all_reduce", "graph": True, "ranks": ranks, "message_bytes": SIZES, "seconds": seconds, "source": "s"}
    )


def test_rings_as_fast_as_two_ranks_or_somewhat_slower_are_kept() -> None:
    rows = pd.concat([ring(2), ring(4, 1.3), ring(8, 1.6)], ignore_index=True)
    assert not held_back(rows).any()


def test_only_the_large_messages_of_the_ranks_that_are_held_back_go() -> None:
    rows = pd.concat([ring(2), ring(4), ring(8, 10.0, from_bytes=2.0**20)], ignore_index=True)
    gone = rows[held_back(rows)]
    assert set(gone.ranks) == {8}
    assert gone.message_bytes.min() == 2.0**20
    assert len(gone) == int((SIZES >= 2.0**20).sum())


def test_a_slow_stretch_in_the_middle_is_a_protocol_not_a_host() -> None:
    rows = pd.concat([ring(2), ring(8)], ignore_index=True)
    middle = (rows.ranks == 8) & rows.message_bytes.between(2.0**19, 2.0**21)
    rows.loc[middle, "seconds"] *= 2.0 * SLOWEST_RING
    assert not held_back(rows).any()


def test_without_two_ranks_nothing_is_compared() -> None:
    assert not held_back(ring(8, 100.0)).any()


def test_the_gate_counts_them_and_the_model_goes_on_as_two_ranks_do() -> None:
    l40s = parse_hardware("l40s").accelerator
    rows = pd.concat([ring(2), ring(8, 10.0, from_bytes=2.0**20)], ignore_index=True)
    kept, report = gate("collective", rows, l40s)
    assert report.to_dict()["rejected_held_back_by_host"] == report.n_rejected == int((SIZES >= 2.0**20).sum())
    model = CollectiveModel.fit(kept, l40s)
    size = 2.0**26
    seconds, origin = model.cost(Collective("all_reduce", size, 8), l40s)
    last = 2.0**19
    by_hand = FLOOR_S + 1.75 * last / BYTES_PER_S + 1.75 / PCIE_SHARE * (size - last) / BYTES_PER_S
    assert float(seconds) == pytest.approx(by_hand, rel=1e-6)
    assert float(origin) == 2.0
    assert "two of them" in str(model.notice(Collective("all_reduce", size, 8)))
    assert model.notice(Collective("all_reduce", size, 2)) is None


def test_the_model_reads_back_what_it_derived() -> None:
    l40s = parse_hardware("l40s").accelerator
    rows = pd.concat([ring(2), ring(8, 10.0, from_bytes=2.0**20)], ignore_index=True)
    model = CollectiveModel.fit(gate("collective", rows, l40s)[0], l40s)
    again = CollectiveModel.from_parts(*model.to_parts())
    assert again.measured_to == model.measured_to == {("all_reduce", True, 8): 2.0**19}


def test_an_undisturbed_table_reports_as_before() -> None:
    rows = pd.concat([ring(2), ring(8)], ignore_index=True)
    _, report = gate("collective", rows, parse_hardware("l40s").accelerator)
    assert set(report.to_dict()) == {"rows_in", "rejected_over_peak_flops", "rejected_over_bandwidth"}
