"""Where the fitted power model lives: one file for all hardware, because its coefficients are shares of each limit."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Final

from calibration.power import PowerCurve, PowerModel
from catalogs.load import DATA

#: Where no fitted file is shipped: half the range for streaming, most of it for arithmetic.
_UNFITTED: Final = PowerCurve(base=0.2, memory=0.4, memory_exponent=1.0, compute=0.6, compute_exponent=0.6)


def power_path() -> Path:
    """catalogs/data/calibrations/power.json of the package."""
    return DATA / "calibrations" / "power.json"


@lru_cache(maxsize=1)
def load_power() -> PowerModel:
    """The shipped power model."""
    path = power_path()
    if not path.is_file():
        return PowerModel(dict.fromkeys(("gemm", "attention", "other"), _UNFITTED), {"source": "stated default"})
    return PowerModel.from_json(json.loads(path.read_text()))
