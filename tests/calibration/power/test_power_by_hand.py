"""Watts by arithmetic: every term of the demand, its cap, and the limit of a board."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibration.power import model
from calibration.power.model import (
    COLLECTIVE_BASE,
    FITTED,
    GROUPS,
    LIMIT_SHARE,
    MOST_DEMAND,
    PowerCurve,
    PowerModel,
    capped_w,
    load_power,
)
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from simulator.costs.totals import gap_w

#: A board of 1,000 W that idles at 100 W and streams 2 TB/s.
BOARD = Accelerator("b", "B", 1e11, 2e12, {"bf16": 1e15}, 1000.0, 100.0)
CURVE = PowerCurve(base=0.25, joules_per_byte=50e-12, compute=0.5)


@pytest.mark.parametrize(
    ("compute", "memory", "watts"),
    [
        (0.0, 0.0, 100 + 900 * 0.25),
        (1.0, 0.0, 100 + 900 * 0.75),
        (0.0, 1.0, 100 + 900 * 0.25 + 100),
        (0.5, 0.5, 100 + 900 * 0.5 + 50),
        (2.0, 3.0, 100 + 900 * 0.75 + 100),  # shares of the peak are at most one
        (-1.0, -1.0, 100 + 900 * 0.25),
    ],
)
def test_every_term_of_the_demand(compute: float, memory: float, watts: float) -> None:
    found = PowerModel(dict.fromkeys(GROUPS, CURVE)).watts("gemm", np.array(compute), np.array(memory), BOARD)
    assert float(found) == pytest.approx(watts, rel=1e-12)


def test_demand_ends_at_a_multiple_of_the_limit() -> None:
    hungry = PowerCurve(base=1.0, joules_per_byte=1e-9, compute=1.0)
    assert float(hungry.watts(np.array(1.0), np.array(2e12), BOARD)) == MOST_DEMAND * 1000.0 == 1400.0


def test_a_board_holds_its_sustained_share_of_the_limit() -> None:
    """Boards of 700 W read 691 W for as long as large products run."""
    assert capped_w(BOARD) == pytest.approx(1000 * 691 / 700, rel=1e-12)
    assert LIMIT_SHARE < 1


def test_the_shipped_file_is_read_as_it_is() -> None:
    raw = json.loads((model.DATA / "calibrations" / model.FILE_NAME).read_text())
    power = load_power()
    assert set(power.curves) == set(GROUPS)
    for group, curve in power.curves.items():
        assert curve.base == raw["curves"][group]["base"]
        assert curve.compute == raw["curves"][group]["compute"]
        assert curve.joules_per_byte == pytest.approx(raw["curves"][group]["pj_per_byte"] * 1e-12, rel=1e-12)
    assert power.to_json() == raw
    assert power.curves["collective"].base == COLLECTIVE_BASE
    assert set(FITTED) < set(GROUPS)
    assert load_power() is power


@pytest.mark.parametrize(("hardware", "read_w"), [("h100", 152.0), ("b200", 268.0), ("v100-32gb", 66.0)])
def test_a_rank_that_waits_in_a_collective_draws_what_boards_read(hardware: str, read_w: float) -> None:
    """NCCL issue 1550, TensorRT-LLM issue 5391 and GLM-130B issue 32: boards at 100 % utilisation in hung servers."""
    unit, idle = parse_hardware(hardware).accelerator, np.zeros(())
    waiting_w = float(load_power().watts("collective", idle, idle, unit))
    assert waiting_w == pytest.approx(read_w, rel=0.15)
    assert unit.idle_w < gap_w(unit) < waiting_w
    assert waiting_w < 0.6 * min(float(load_power().watts(group, idle, idle, unit)) for group in FITTED)


@pytest.mark.parametrize("text", [None, "{"])
def test_a_file_that_cannot_be_read_is_named(
    text: str | None, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "calibrations"
    folder.mkdir()
    if text is not None:
        (folder / model.FILE_NAME).write_text(text)
    monkeypatch.setattr(model, "DATA", Path(str(tmp_path)))
    load_power.cache_clear()
    with pytest.raises(InputError, match="cannot be read as JSON"):
        load_power()


def test_a_group_that_is_missing_is_named() -> None:
    raw = PowerModel(dict.fromkeys(GROUPS, CURVE)).to_json()
    del raw["curves"]["moe"]
    with pytest.raises(InputError, match="moe"):
        PowerModel.from_json(raw)
