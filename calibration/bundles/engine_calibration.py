"""The overhead of an engine on one machine, learned from a short probe of the engine itself.

There are two forms, and both are kept: host times, which are added to operator costs (bottom-up), and the time of whole
steps by their contents (engine-level), which needs no operators but describes one model in one layout only.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, model_validator

from calibration.bundles.bundle import user_folder
from calibration.bundles.files import ENGINES_FOLDER
from calibration.bundles.ranges import first_fault
from catalogs.engines.profile import HostTimes
from catalogs.errors import InputError
from catalogs.io.output_files import make_folder, write_json

#: Version of the form of the file.
SCHEMA_VERSION: Final = 1

#: Factor of depth over the probed model up to which host times of eager steps are used. A judgement: further
#: extrapolation is a guess.
DEEPER: Final = 2.0


#: Seconds of a part of a step or a request; no engine takes ten minutes for one.
_Seconds = Annotated[float, Field(ge=0.0, le=600.0)]

_StepSeconds = Annotated[float, Field(gt=0.0, le=600.0)]

_Nodes = Annotated[tuple[NonNegativeInt, ...], Field(min_length=2)]


class MeasuredHost(BaseModel, extra="forbid", frozen=True):
    """Host times in seconds, in the form of `HostTimes`."""

    step_s: _Seconds
    step_s_per_sequence: _Seconds
    step_gap_s: _Seconds
    request_s: _Seconds
    request_s_per_input_token: _Seconds
    output_s: _Seconds


class MeasuredSteps(BaseModel, extra="forbid", frozen=True):
    """Seconds of an engine step, from start to start, by its contents; linear between nodes and beyond them.

    A step of decodes only takes decode_s at the number of decodes. A step with prefill takes token_s at all tokens of
    the step (a token of prefill and one of decode have the same weight), plus per_decode_s for each decode and, where
    the engine's log has them, per_pair_s for each pair of a token and a key that it attends to. Both add
    per_context_token_s for each cached token that decodes read.
    """

    decodes: _Nodes  # ascending
    decode_s: tuple[_StepSeconds, ...]
    tokens: _Nodes  # ascending
    token_s: tuple[_StepSeconds, ...]
    per_decode_s: _Seconds
    per_context_token_s: _Seconds
    per_pair_s: _Seconds = 0.0

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        for name, nodes, seconds in (("decodes", self.decodes, self.decode_s), ("tokens", self.tokens, self.token_s)):
            if len(nodes) != len(seconds) or any(a >= b for a, b in pairwise(nodes)):
                raise ValueError(f"{name}: ascending nodes, each with its seconds")
        return self


class EngineCalibration(BaseModel, extra="forbid", frozen=True):
    """The calibration of one engine on one machine, from a probe with one model."""

    schema_version: Literal[1] = SCHEMA_VERSION
    hardware: str
    engine: str
    engine_version: str
    model: str
    weight_dtype: str
    n_layers: int = Field(ge=1)
    tensor_parallel: int = 1
    as_of: str
    source: str
    host: MeasuredHost
    steps: MeasuredSteps | None = None
    contended: bool = False

    def host_times(self, profile: HostTimes) -> HostTimes:
        """Return the engine profile's host times with the measured ones in place of its own."""
        source = f"measured {self.as_of} on {self.hardware} with {self.engine} {self.engine_version}: {self.source}"
        return replace(profile, **self.host.model_dump(), measured=True, source=source)

    def suits(self, n_layers: int) -> bool:
        """Return whether host times hold for a model of this depth.

        Without graphs the host launches the kernels of every layer.
        """
        return 1.0 / DEEPER <= n_layers / self.n_layers <= DEEPER

    @property
    def notice(self) -> str:
        """Return the notice that answers with this calibration carry."""
        doubt = ", while other processes used the machine" if self.contended else ""
        return f"host times of {self.engine} measured here on {self.as_of} with {self.model}{doubt}"


def file_of(hardware: str, engine: str) -> Path:
    """Return the file of an engine's calibration on this user's hardware."""
    return user_folder() / hardware / ENGINES_FOLDER / f"{re.sub(r'[^a-z0-9.-]+', '-', engine.lower())}.json"


def save(calibration: EngineCalibration) -> Path:
    """Install the calibration for `plan` and `simulate` and return its file.

    Raises:
        InputError: The file cannot be written.
    """
    path = file_of(calibration.hardware, calibration.engine)
    make_folder(path.parent)
    write_json(calibration.model_dump(mode="json"), str(path))
    return path


def find(hardware: str, engine: str) -> EngineCalibration | None:
    """Return the user's calibration of this engine on this hardware, or None.

    Raises:
        InputError: The file is damaged or is of another engine or hardware.
    """
    path = file_of(hardware, engine)
    if not path.is_file():
        return None
    try:
        found = EngineCalibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"engine calibration cannot be read ({error.strerror})", str(path)) from None
    except ValidationError as error:
        rule = f"engine calibration is not valid ({first_fault(error)}); remove it"
        raise InputError(rule, str(path)) from None
    if (found.hardware, found.engine) != (hardware, engine):
        raise InputError("engine calibration is for another machine or engine; remove it", str(path))
    return found
