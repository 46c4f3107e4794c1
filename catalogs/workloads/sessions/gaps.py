"""Times between requests of a session: of tools, and of humans."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, field_validator, model_validator

from catalogs.arrays import BoolArray, FloatArray
from catalogs.io.yaml_files import Share, YamlBlock, choose_kind
from catalogs.workloads.arrivals import Variation
from catalogs.workloads.lengths import check_quantiles


class Seconds(YamlBlock):
    """Base class of distributions of times."""

    def sample_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return n times in seconds. Shape (n,)."""
        raise NotImplementedError


class ConstantTime(Seconds):
    """The same time for every gap, in seconds."""

    seconds: NonNegativeFloat

    def sample_s(self, rng: np.random.Generator, n: int) -> FloatArray:  # noqa: ARG002 - one signature for all
        """Return the time n times. Shape (n,)."""
        return np.full(n, self.seconds)


class ExponentialTime(Seconds):
    """Exponentially distributed times with a mean in seconds."""

    mean_s: NonNegativeFloat

    def sample_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return n exponential times. Shape (n,)."""
        return rng.standard_exponential(n) * self.mean_s


class LognormalTime(Seconds):
    """Lognormal times with this mean in seconds and this coefficient of variation; see `lengths.Lognormal`."""

    mean_s: PositiveFloat
    cv: Variation

    def sample_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return n lognormal times. Shape (n,)."""
        variance = np.log1p(self.cv**2)
        found: FloatArray = np.exp(np.log(self.mean_s) - variance / 2 + np.sqrt(variance) * rng.standard_normal(n))
        return found


class TimeQuantiles(Seconds):
    """A quantile table {probability: seconds} from 0 to 1, interpolated in the logarithm of the time.

    Times between requests span five orders of magnitude, so that straight lines between the entries of a table of usual
    size would raise the mean.
    """

    table: dict[Share, PositiveFloat]

    @model_validator(mode="after")
    def _is_quantile_function(self) -> TimeQuantiles:
        check_quantiles(list(self.table), [list(self.table.values())])
        return self

    def sample_s(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return n times from the interpolated table. Shape (n,)."""
        logs = np.log(np.array(list(self.table.values())))
        found: FloatArray = np.exp(np.interp(rng.random(n), list(self.table), logs))
        return found


TIMES: Final[dict[str, type[Seconds]]] = {
    "constant": ConstantTime,
    "exponential": ExponentialTime,
    "lognormal": LognormalTime,
    "quantiles": TimeQuantiles,
}


def parse_time(data: object, where: str) -> Seconds:
    """Return the distribution that `data` names; a number is the mean of an exponential distribution, in seconds.

    Raises:
        InputError: The kind or a key is unknown (the message names the nearest), or a value is out of range.
    """
    if isinstance(data, int | float) and not isinstance(data, bool):
        return choose_kind(TIMES, {"exponential": {"mean_s": data}}, where)
    return choose_kind(TIMES, data, where)


class Gaps(YamlBlock):
    """The times from the end of a turn to the next: those of tools, and those of humans for a share of the turns.

    Gaps above `longest_s` are cut to it: a benchmark does not wait for hours, and an agent that waits needs no server.
    """

    tool: Seconds
    human: Seconds | None = None
    human_share: Share = 0.0
    longest_s: PositiveFloat | None = None

    @field_validator("tool", "human", mode="before")
    @classmethod
    def _parse(cls, data: Any) -> Seconds | None:
        return data if data is None or isinstance(data, Seconds) else parse_time(data, "turns.gap_s")

    @model_validator(mode="after")
    def _whole(self) -> Gaps:
        if self.human_share and self.human is None:
            raise ValueError("human_share needs the times of humans (key human)")
        return self

    def draw(self, rng: np.random.Generator, n: int, tools_only: BoolArray) -> tuple[FloatArray, BoolArray]:
        """Return n gaps in seconds, and which of them are those of humans. Shape (n,) each.

        Args:
            rng: The random stream; each gap takes the same number of draws.
            n: The number of gaps.
            tools_only: Whether no human takes part, as between the turns of a sub-agent. Shape (n,).
        """
        by_human = (rng.random(n) < self.human_share) & ~tools_only
        found = self.tool.sample_s(rng, n)
        if self.human is not None:
            found = np.where(by_human, self.human.sample_s(rng, n), found)
        return (found if self.longest_s is None else np.minimum(found, self.longest_s)), by_human

    @property
    def mean_s(self) -> float:
        """Return the mean gap between the turns of a session, in seconds."""
        return float(self.draw(np.random.default_rng(0), 20_000, np.zeros(20_000, dtype=np.bool_))[0].mean())


def parse_gaps(data: object) -> Gaps:
    """Return the gaps of `turns.gap_s`: the keys of `Gaps`, or one distribution of the times of tools.

    Raises:
        InputError: A key is unknown (the message names the nearest), or a value is out of range.
    """
    from catalogs.io.yaml_files import check_keys

    if isinstance(data, dict) and not (data.keys() & TIMES.keys()):
        return check_keys(Gaps, data, "turns.gap_s")
    return Gaps(tool=parse_time(data, "turns.gap_s"))
