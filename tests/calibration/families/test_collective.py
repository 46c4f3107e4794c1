"""Collectives: hand-checked points, units, physics, and what follows for cases nobody measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibration.families.collective import CollectiveModel
from calibration.families.curve import MonotoneCurve, isotonic
from calibration.importers import nccl
from calibration.importers.aiconfigurator import SYSTEM_OF, read_family
from calibration.operators.operators import Collective
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator

MIB = 1024**2


def world(gbytes_per_s: float = 100.0, floor_s: float = 10e-6) -> tuple[CollectiveModel, Accelerator]:
    """All-reduce and all-gather on 2, 4 and 8 ranks whose wire moves exactly `gbytes_per_s`."""
    rows = [
        {
            "kind": kind,
            "message_bytes": size,
            "ranks": r,
            "graph": True,
            "seconds": floor_s + share * size / (gbytes_per_s * 1e9),
        }
        for r in (2, 4, 8)
        for kind, share in (("all_reduce", 2 * (r - 1) / r), ("all_gather", (r - 1) / r))
        for size in 2.0 ** np.arange(10, 31)
    ]
    h100 = parse_hardware("h100").accelerator
    return CollectiveModel.fit(pd.DataFrame(rows), h100), h100


def seconds(model: CollectiveModel, accelerator: Accelerator, kind: str, size: float, ranks: int) -> float:
    return float(model.cost(Collective(kind, size, ranks), accelerator)[0])


def test_isotonic_pools_only_what_falls() -> None:
    assert isotonic(np.array([1.0, 3.0, 2.0, 4.0])).tolist() == [1.0, 2.5, 2.5, 4.0]


def test_a_curve_keeps_its_nodes_and_says_where_they_end() -> None:
    curve = MonotoneCurve.fit([1e3, 1e6, 1e9], [1e-5, 2e-5, 1e-2])
    got, origin = curve.at(np.array([10.0, 1e3, 3e4, 1e6, 1e9, 2e9]))
    np.testing.assert_allclose(got[[0, 1, 3, 4]], [1e-5, 1e-5, 2e-5, 1e-2])
    assert origin.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 2.0]
    assert got[5] == pytest.approx(2e-2, rel=0.01)


def test_between_ranks_lies_between_and_beyond_them_goes_on_in_one_node() -> None:
    model, h100 = world()
    times = [seconds(model, h100, "all_reduce", 64 * MIB, r) for r in (4, 6, 8, 16)]
    assert times == sorted(times)
    wire = 64 * MIB / 100e9 * 2 * 15 / 16
    assert times[3] == pytest.approx(10e-6 * 4 / 3 + wire, rel=0.02)
    assert float(model.cost(Collective("all_reduce", 64 * MIB, 16), h100)[1]) == 2.0


def test_kinds_that_were_not_measured_follow_from_those_that_were() -> None:
    model, h100 = world(floor_s=1e-9)
    size = 256 * MIB
    gather = seconds(model, h100, "all_gather", size, 8)
    assert seconds(model, h100, "all_to_all", size, 8) == pytest.approx(gather)
    assert seconds(model, h100, "reduce_scatter", size, 8) == pytest.approx(gather, rel=0.01)  # half an all-reduce
    assert seconds(model, h100, "send_recv", size, 2) == pytest.approx(size / 100e9, rel=0.01)
    with pytest.raises(InputError, match="stands in for"):
        model.cost(Collective("gossip", size, 8), h100)
    with pytest.raises(InputError, match="two ranks"):
        model.cost(Collective("all_reduce", size, 1), h100)


def test_parts_round_trip_and_vectors_equal_scalars() -> None:
    model, h100 = world()
    facts, arrays = model.to_parts()
    again = CollectiveModel.from_parts(json.loads(json.dumps(facts)), arrays)
    sizes = np.array([1.0, 5e3, 3e6, 7e8, 9e9])
    together, origin = again.cost(Collective("all_reduce", sizes, 4), h100)
    for i, size in enumerate(sizes):
        one, o = model.cost(Collective("all_reduce", float(size), 4), h100)
        assert float(one) == together[i]
        assert float(o) == origin[i]
    assert (np.diff(together) >= 0).all()


@pytest.mark.parametrize("hardware", ["h100", "h200", "b200", "a100-80gb", "l40s", "rtxpro6000"])
def test_public_tables_stay_below_the_link_and_keep_their_nodes(public_data: Path, hardware: str) -> None:
    node = parse_hardware(hardware).node
    rows = read_family(public_data / "profiles" / "aiconfigurator", SYSTEM_OF[hardware], "collective")
    assert rows is not None
    model = CollectiveModel.fit(rows, node.accelerator)
    large = rows[rows.message_bytes >= 256 * MIB]
    # In-switch reduction sends every byte once, so the size itself over the link bounds an all-reduce.
    wire = large.message_bytes * np.where(large.kind == "all_reduce", 1.0, (large.ranks - 1) / large.ranks)
    assert (wire / large.seconds <= node.link_bytes_per_s * 1.02).all()
    graph = rows[(rows.kind == "all_reduce") & rows.graph & (rows.ranks == 2)]
    got, origin = model.cost(Collective("all_reduce", graph.message_bytes.to_numpy(), 2), node.accelerator)
    assert (origin == 0).all()
    assert float(np.median(np.abs(got / graph.seconds.to_numpy() - 1))) < 0.01


def test_messages_are_elements_not_bytes(public_data: Path) -> None:
    """Planted mistake: read as bytes, the table would say H100 takes twice what nccl-tests measured."""
    profiles = public_data / "profiles"
    rows = read_family(profiles / "aiconfigurator", "h100_sxm", "collective")
    other = nccl.import_tables(profiles / "nccl_tests", "h100")["collective"]
    assert rows is not None
    h100 = parse_hardware("h100").accelerator
    large = other[(other.message_bytes >= 32 * MIB) & (other.kind == "all_reduce") & (other.ranks == 8)]
    op = Collective("all_reduce", large.message_bytes.to_numpy(), 8)

    def bias(table: pd.DataFrame) -> float:
        return float(np.median(CollectiveModel.fit(table, h100).cost(op, h100)[0] / large.seconds.to_numpy() - 1))

    assert abs(bias(rows)) < 0.10
    assert bias(rows.assign(message_bytes=rows.message_bytes / 2)) > 0.6


def test_the_engines_small_all_reduce_is_faster_than_nccl(public_data: Path) -> None:
    rows = read_family(public_data / "profiles" / "aiconfigurator", "h100_sxm", "collective")
    assert rows is not None
    h100 = parse_hardware("h100").accelerator
    model = CollectiveModel.fit(rows, h100)
    decode = Collective("all_reduce", 64 * 8192 * 2.0, 8)  # 64 sequences of a 70B model
    assert 8e-6 < float(model.cost(decode, h100)[0]) < 20e-6
    eager = Collective("all_reduce", 64 * 8192 * 2.0, 8, graph=False)
    assert float(model.cost(eager, h100)[0]) > float(model.cost(decode, h100)[0])
