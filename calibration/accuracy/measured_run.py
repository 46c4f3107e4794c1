"""The measurements of a load client in one run against a server, which simulated latencies are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from catalogs.arrays import BoolArray, FloatArray, IntArray
from catalogs.errors import InputError

Metric = Literal["ttft", "tpot", "itl", "e2e"]

Stat = Literal["mean", "p50", "p90", "p99"]

METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "itl", "e2e")

STATS: Final[tuple[Stat, ...]] = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The load that a client was set to offer, as its result states it; None where it states no limit.

    With a rate, requests are sent at it whatever the server does. With only a concurrency, a request is sent when
    another one ends.
    """

    requests_per_s: float | None = None
    concurrency: int | None = None


UNSTATED: Final = OfferedLoad()


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without a usable measurement: its position in the order of sending, and the reason."""

    position: int
    reason: str


_PER_REQUEST: Final = ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s")

_ARRAYS: Final = (*_PER_REQUEST, "itl_s")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """One run of one client: one row per finished request, NaN where the client gives no value.

    The six per-request arrays have shape (n,): arrival_s counts from the start of the run, ttft_s and e2e_s from when
    the client sent the request, tpot_s is (last token - first token) / (output_tokens - 1) and NaN for one-token
    outputs. itl_s is flat, shape (any,): every gap between two tokens that the client received, of all requests in
    order. `notes` names the requests that were dropped, with the reasons. `failures` lists the requests that failed or
    were dropped, where the client keeps their order. `offered` is the load that the client was set to offer.

    Raises:
        InputError: Shapes differ, or the duration is not positive.
    """

    client: str
    source: str
    arrival_s: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray
    itl_s: FloatArray
    duration_s: float
    n_failed: int
    notes: tuple[str, ...] = ()
    n_gaps: tuple[int, ...] = ()  # gaps of itl_s by request; () where the client does not report them
    offered: OfferedLoad = UNSTATED
    failures: tuple[FailedRequest, ...] = ()

    def __post_init__(self) -> None:
        for name in _PER_REQUEST:
            if getattr(self, name).shape != (self.n,):
                raise InputError(f"{name} of a measured run needs one value per request", getattr(self, name).shape)
        if self.itl_s.ndim != 1:
            raise InputError("itl_s of a measured run must be one flat array", self.itl_s.shape)
        if self.n_gaps and (len(self.n_gaps) != self.n or sum(self.n_gaps) != len(self.itl_s)):
            raise InputError("n_gaps of a measured run must add up to the length of its itl_s", sum(self.n_gaps))
        if not self.duration_s > 0:
            raise InputError("the duration of a measured run must be positive, seconds", self.duration_s)

    @property
    def n(self) -> int:
        """Return the number of requests that finished and were kept."""
        return len(self.ttft_s)

    def gaps(self) -> list[FloatArray]:
        """Return the gaps between messages, one array per request.

        Raises:
            InputError: The client does not report gaps by request.
        """
        if not self.n_gaps:
            raise InputError("this client does not report gaps by request", self.client)
        return np.split(self.itl_s, np.cumsum(self.n_gaps)[:-1])

    def picked(self, kept: BoolArray) -> MeasuredRun:
        """Return the run with the kept requests only. `kept` has shape (n,)."""
        arrays: dict[str, Any] = {name: getattr(self, name)[kept] for name in _PER_REQUEST}
        if not self.n_gaps:
            return replace(self, **arrays, failures=())
        parts = [gaps for gaps, keep in zip(self.gaps(), kept.tolist(), strict=True) if keep]
        n_gaps = tuple(len(gaps) for gaps in parts)
        return replace(self, **arrays, itl_s=np.concatenate([*parts, np.empty(0)]), n_gaps=n_gaps, failures=())

    @property
    def requests_per_s(self) -> float:
        """Return the number of kept requests over the duration of the run."""
        return self.n / self.duration_s

    @property
    def output_tokens_per_s(self) -> float:
        """Return the output tokens of the kept requests over the duration of the run."""
        return float(np.nansum(self.output_tokens)) / self.duration_s

    def samples(self, metric: Metric) -> FloatArray:
        """Return all finite values of a metric in seconds, shape (any,).

        Raises:
            InputError: The metric is unknown.
        """
        if metric not in METRICS:
            raise InputError("unknown latency metric", metric, ", ".join(METRICS))
        values: FloatArray = getattr(self, f"{metric}_s")
        return values[np.isfinite(values)]

    def stat(self, metric: Metric, stat: Stat) -> float:
        """Return the mean or a percentile of a metric in seconds; NaN without samples.

        Percentiles interpolate linearly, as clients do.
        """
        if stat not in STATS:
            raise InputError("unknown statistic", stat, ", ".join(STATS))
        values = self.samples(metric)
        if not len(values):
            return float("nan")
        return float(values.mean() if stat == "mean" else np.percentile(values, float(stat[1:])))

    def document(self) -> dict[str, Any]:
        """Return the run as JSON data, from which `read` makes an equal one; a time that is not finite is None."""
        arrays = {name: [x if np.isfinite(x) else None for x in getattr(self, name).tolist()] for name in _ARRAYS}
        others = ("client", "source", "duration_s", "n_failed")
        return {
            **{name: getattr(self, name) for name in others},
            **arrays,
            "notes": list(self.notes),
            "n_gaps": list(self.n_gaps),
            "offered": asdict(self.offered),
            "failures": [asdict(failure) for failure in self.failures],
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> MeasuredRun:
        """Return the run of a document.

        Raises:
            KeyError, TypeError, ValueError: It is not the document of a run.
        """
        return cls(
            **dict(document)
            | {name: np.array(document[name], dtype=np.float64) for name in _ARRAYS}
            | {name: tuple(document[name]) for name in ("notes", "n_gaps")}
            | {"offered": OfferedLoad(**document["offered"])}
            | {"failures": tuple(FailedRequest(**failure) for failure in document["failures"])}
        )


def combined(parts: Sequence[tuple[IntArray, MeasuredRun]]) -> MeasuredRun:
    """Return one run of requests that were measured in several runs of one client, in the order of their positions.

    Args:
        parts: Positions of the requests, of shape (n,) for a run of n requests, and the run. Arrival times stay those
            of each run.
    """
    first = parts[0][1]
    order = np.argsort(np.concatenate([positions for positions, _ in parts]), kind="stable")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(run, name) for _, run in parts])[order] for name in _PER_REQUEST
    }
    gaps = [each for _, run in parts for each in (run.gaps() if run.n_gaps else [])]
    sorted_gaps = [gaps[i] for i in order] if gaps else []
    return replace(
        first,
        **arrays,
        itl_s=np.concatenate([*sorted_gaps, np.empty(0)]),
        n_gaps=tuple(len(each) for each in sorted_gaps),
        duration_s=sum(run.duration_s for _, run in parts),
        n_failed=0,
        notes=tuple(dict.fromkeys(note for _, run in parts for note in run.notes)),
        failures=(),
    )
