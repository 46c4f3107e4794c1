"""Where the fitted power model lives: one file for all hardware, because its coefficients are shares of each limit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from calibration.power.file import FILE_NAME
from calibration.power.model import PowerModel, fit_power
from catalogs.io.output_files import write_json

SOURCE: Final = "aiconfigurator@095f58a51 h200_sxm vllm 0.22.0 (Apache-2.0)"


def write_power(tables: Path, folder: Path) -> Path:
    """Fit the public H200 rows with watts (`tables`/aiconfigurator/h200_sxm) and write the model to `folder`."""
    from calibration.importers.power import read_power_rows
    from catalogs.hardware.catalog import parse_hardware

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
