"""Where the fitted power model lives: one file for all hardware, because its coefficients are shares of each limit."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from calibration.power.model import COLLECTIVE_BASE, GROUPS, PowerCurve, PowerModel
from catalogs.errors import InputError
from catalogs.io.yaml_files import DATA

FILE_NAME: Final = "power.json"

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
