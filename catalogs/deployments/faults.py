"""What breaks while a deployment serves, and how its router tries again, as deployment.yaml says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from catalogs.errors import InputError
from catalogs.io.yaml_files import check_keys

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(_Keys):
    """One thing that breaks at a given time (`at_s`), or things of a kind that break again and again (`mtbf_s`).

    crash: a replica is gone. node: all replicas on a node are. slow: a replica's steps take `factor` times as long.
    link: its collectives and KV transfers do. Scripted faults end after `lasts_s` (null: never): a crashed replica is
    ready to serve again then. Random ones befall every replica (or node) by itself: times between the end of one and
    the next are gamma distributed with mean mtbf_s and coefficient of variation mtbf_cv (1: exponential, 0: constant),
    how long they last likewise with mttr_s and mttr_cv.
    """

    kind: Literal["crash", "slow", "link", "node"]
    at_s: Seconds | None = None
    lasts_s: Positive | None = None
    replica: NonNegativeInt | None = None  # its place in the pool
    node: NonNegativeInt | None = None
    pool: NonNegativeInt | None = None  # its place among the deployment's pools; null: the first, if random all
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    mtbf_s: Positive | None = None
    mttr_s: Positive | None = None
    mtbf_cv: Seconds = 1.0
    mttr_cv: Seconds = 1.0
    seed: Annotated[int, Field(ge=0, strict=True)] = 0

    @property
    def scripted(self) -> bool:
        return self.at_s is not None


class Retries(_Keys):
    """A request whose replica died is sent again. Defaults: SGLang's router (RetryConfig in config/types.rs)."""

    limit: NonNegativeInt = 5  # times it is sent again before it fails
    backoff_s: Seconds = 0.05  # before the first
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    longest_s: Seconds = 30.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2  # share by which a wait is longer or shorter, at random

    def wait_s(self, attempt: int, draw: float) -> float:
        """Before attempt 1, 2, …; `draw` is uniform in 0..1."""
        plain_s = min(self.backoff_s * self.factor ** min(attempt - 1, 1000), self.longest_s)
        return plain_s * (1.0 + self.jitter * (2.0 * draw - 1.0))


def parse_retries(data: object) -> Retries:
    """`{limit: 3, …}`; InputError for an unknown key or a value out of range."""
    return check_keys(Retries, data, "retries")


def parse_faults(data: Sequence[object]) -> tuple[Fault, ...]:
    """The list under `faults`. Raises InputError naming the entry and the key that breaks a rule."""
    return tuple(_checked(check_keys(Fault, item, f"faults[{i}]"), f"faults[{i}]") for i, item in enumerate(data))


def _checked(fault: Fault, where: str) -> Fault:
    if fault.scripted == (fault.mtbf_s is not None):
        raise InputError(f"{where} either happens once (at_s) or again and again (mtbf_s)", None, "at_s: 60")
    slows = fault.kind in ("slow", "link")
    if slows and fault.factor is None:
        raise InputError(f"{where}: kind {fault.kind} needs a factor", None, "factor: 2")
    if not slows and fault.factor is not None:
        raise InputError(f"{where}: kind {fault.kind} has no factor", fault.factor, "kind: slow")
    if fault.scripted:
        _check_scripted(fault, where)
    elif fault.mttr_s is None:
        raise InputError(f"{where}: mtbf_s needs mttr_s", None, "mttr_s: 300")
    elif fault.replica is not None or fault.node is not None:
        raise InputError(f"{where}: random faults befall all; leave replica and node out", "mtbf_s", "at_s: 60")
    elif fault.lasts_s is not None:
        raise InputError(f"{where}: random faults last mttr_s", fault.lasts_s, "mttr_s")
    return fault


def _check_scripted(fault: Fault, where: str) -> None:
    if fault.mttr_s is not None:
        raise InputError(f"{where}: a fault at at_s lasts lasts_s", fault.mttr_s, "lasts_s")
    wanted, other = ("node", "replica") if fault.kind == "node" else ("replica", "node")
    if getattr(fault, wanted) is None:
        raise InputError(f"{where}: kind {fault.kind} needs {wanted}", None, f"{wanted}: 0")
    if getattr(fault, other) is not None:
        raise InputError(f"{where}: kind {fault.kind} has no {other}", getattr(fault, other), wanted)
