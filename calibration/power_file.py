"""Where the fitted power model lives: one file for all hardware, because its coefficients are shares of each limit."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Final

from calibration.power import COLLECTIVE_BASE, GROUPS, PowerCurve, PowerModel, fit_power
from catalogs.errors import InputError
from catalogs.files import write_json
from catalogs.load import DATA

FILE_NAME: Final = "power.json"
SOURCE: Final = "aiconfigurator@095f58a51 h200_sxm vllm 0.22.0 (Apache-2.0)"
#: Where no fitted file is shipped: a third of the range for a busy device, most of it for arithmetic.
_UNFITTED: Final = PowerCurve(base=0.35, joules_per_byte=60e-12, compute=0.9)


@lru_cache(maxsize=1)
def load_power() -> PowerModel:
    """The shipped power model; InputError where its file is damaged."""
    path = DATA / "calibrations" / FILE_NAME
    if not path.is_file():
        waiting = PowerCurve(COLLECTIVE_BASE, _UNFITTED.joules_per_byte, 0.0)
        return PowerModel(dict.fromkeys(GROUPS, _UNFITTED) | {"collective": waiting}, {"source": "stated default"})
    try:
        return PowerModel.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("power model is not valid JSON", str(path)) from None


def write_power(tables: Path, folder: Path) -> Path:
    """Fit the public H200 rows with watts (`tables`/aiconfigurator/h200_sxm) and write the model to `folder`."""
    from calibration.importers.power import read_power_rows
    from catalogs.hardware import parse_hardware

    measured = parse_hardware("h200").accelerator
    rows = read_power_rows(tables / "aiconfigurator" / "h200_sxm", measured)
    model, errors = fit_power(rows, measured)
    held_out = {
        str(row["group"]): {"n": int(row["n"]), **{k: round(float(row[k]), 4) for k in ("median_abs", "p90_abs")}}
        for row in errors.to_dict("records")
    }
    fitted = PowerModel(model.curves, {"source": SOURCE, "rows": len(rows), "held_out": held_out})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    write_json(fitted.to_json(), str(path))
    return path
