"""The ranges of a bundle's constants: values that no measurement can produce are refused on writing and reading."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, StrictBool, ValidationError

#: Seconds of one operator. No measured one takes a minute.
_Seconds = Annotated[float, Field(gt=0.0, le=60.0)]

#: FLOPs or bytes per second, from a slow link to a hundred times the fastest accelerator.
_Rate = Annotated[float, Field(ge=1e6, le=1e18)]

_Share = Annotated[float, Field(ge=0.0, le=1.0)]

_AXIS: Final = re.compile(r"\.axis\d+$")


def first_fault(error: ValidationError, whole: str = "") -> str:
    """Return the place and the message of the first fault in a document; `whole` is the name of the document itself."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


class _FittedOn(BaseModel, extra="forbid"):
    name: str
    memory_bandwidth_bytes_per_s: _Rate
    peak_flops: dict[str, _Rate]
    link_bytes_per_s: _Rate


class _Serial(BaseModel, extra="forbid"):
    seconds_per_key: _Seconds
    lanes: Annotated[float, Field(gt=0.0, le=1e6)]
    joins_decodes: StrictBool


class _Facts(BaseModel, extra="allow"):
    """The constants of all families; each family has some of them, and names that are not numbers."""

    floors_s: dict[str, _Seconds] = {}
    skew_alpha: _Share = 0.0
    writes_cache: StrictBool = False
    serial: dict[str, _Serial] = {}
    peak_flops: _Rate | None = None
    fitted_on: _FittedOn | None = None
    shape: dict[str, Annotated[int, Field(ge=1)]] = {}
    launch_s: _Seconds | None = None
    prefill_efficiency: Annotated[float, Field(gt=0.0, le=2.0)] | None = None
    decode_efficiency: Annotated[float, Field(gt=0.0, le=2.0)] | None = None


def check_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a family unchanged.

    Raises:
        ValueError: A constant is out of range.
    """
    try:
        _Facts.model_validate(facts)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None
    bad = next((name for name, value in _numbers(facts) if not (math.isfinite(value) and value >= 0.0)), None)
    if bad is not None:
        raise ValueError(f"{bad}: a constant must be finite and not negative")
    return facts


def _numbers(facts: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(facts, Mapping):
        for key, value in facts.items():
            yield from _numbers(value, f"{name}.{key}".lstrip("."))
    elif isinstance(facts, list):
        for i, value in enumerate(facts):
            yield from _numbers(value, f"{name}.{i}")
    elif isinstance(facts, int | float):
        yield name, facts


def array_fault(arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return the first array (of any shape) with a value that no fit can give, and the rule; None where all are sound.

    NaN stands for a combination that was not measured; the axes and values of grids have none.
    """
    for name, values in arrays.items():
        if values.dtype.kind not in "biuf":
            return f"{name}: numbers only"
        if not values.size or values.dtype.kind != "f":
            continue
        if np.isinf(values).any():
            return f"{name}: no infinite values"
        if _AXIS.search(name) and not (np.isfinite(values).all() and (np.diff(values) > 0).all()):
            return f"{name}: ascending"
        if name.endswith(".values") and np.isnan(values).any():
            return f"{name}: no missing values"
        if name.endswith("seconds") and (values <= 0).any():
            return f"{name}: positive seconds"
    return None
