"""Faults and retries of deployment.yaml: what fails while a deployment serves, and how its router resends requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from catalogs.errors import InputError
from catalogs.io.yaml_files import Seed, Share, YamlBlock, check_keys

#: Shortest mean time between faults, and of a fault; a simulation has an event for each.
LEAST_S: Final = 1e-3

#: A coefficient of variation whose square is neither zero nor infinite; 0 means constant.
Variation = Annotated[float, Field(ge=0, le=1e3), AfterValidator(lambda cv: cv if cv >= 1e-6 else 0.0)]


class Fault(YamlBlock):
    """One failure at a given time (`at_s`), or random failures of one kind that recur (`mtbf_s`).

    `crash`: a replica fails. `node`: all replicas on a node fail. `slow`: the steps of a replica take `factor` times as
    long. `link`: its collectives and KV transfers do. A scripted fault ends after `lasts_s` (null: never); a crashed
    replica can then serve again. Random faults strike each replica (or node) independently: the times between the end
    of one fault and the start of the next are gamma distributed with mean mtbf_s and coefficient of variation mtbf_cv
    (1: exponential, 0: constant), and their durations likewise with mttr_s and mttr_cv.
    """

    kind: Literal["crash", "slow", "link", "node"]
    at_s: NonNegativeFloat | None = None
    lasts_s: PositiveFloat | None = None
    replica: NonNegativeInt | None = None  # index in the pool
    node: NonNegativeInt | None = None
    #: The index of the pool; null: the first pool for a scripted fault, all pools for a random one.
    pool: NonNegativeInt | None = None
    factor: Annotated[float, Field(gt=1)] | None = None
    mtbf_s: Annotated[float, Field(ge=LEAST_S)] | None = None
    mttr_s: Annotated[float, Field(ge=LEAST_S)] | None = None
    mtbf_cv: Variation = 1.0
    mttr_cv: Variation = 1.0
    seed: Seed = 0

    @property
    def scripted(self) -> bool:
        """Return whether the fault happens once, at a given time."""
        return self.at_s is not None


class Retries(YamlBlock):
    """How often and how fast a request is resent after its replica failed.

    The defaults are those of SGLang's router (RetryConfig in config/types.rs).
    """

    limit: NonNegativeInt = 5  # attempts after the first before the request fails
    backoff_s: NonNegativeFloat = 0.05  # wait before the first retry
    factor: Annotated[float, Field(ge=1)] = 1.5
    longest_s: NonNegativeFloat = 30.0
    jitter: Share = 0.2  # largest random deviation of a wait, as a fraction of it

    def wait_s(self, attempt: int, draw: float) -> float:
        """Return the seconds to wait before retry `attempt` (1, 2, ...); `draw` is uniform in 0..1."""
        plain_s = min(self.backoff_s * self.factor ** min(attempt - 1, 1000), self.longest_s)
        return plain_s * (1.0 + self.jitter * (2.0 * draw - 1.0))


def parse_retries(data: object) -> Retries:
    """Return the checked `retries` block, such as `{limit: 3}`.

    Raises:
        InputError: A key is unknown or a value is out of range.
    """
    return check_keys(Retries, data, "retries")


def parse_faults(data: Sequence[object]) -> tuple[Fault, ...]:
    """Return the checked entries under `faults`.

    Raises:
        InputError: An entry breaks a rule; the message names the entry and the key.
    """
    return tuple(_checked(check_keys(Fault, item, f"faults[{i}]"), f"faults[{i}]") for i, item in enumerate(data))


def _checked(fault: Fault, where: str) -> Fault:
    if fault.scripted == (fault.mtbf_s is not None):
        raise InputError(f"{where} needs exactly one of at_s (happens once) and mtbf_s (recurs)", None, "at_s: 60")
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
        rule = f"{where}: random faults strike every replica or node; leave out replica and node"
        raise InputError(rule, "mtbf_s", "at_s: 60")
    elif fault.lasts_s is not None:
        raise InputError(f"{where}: the duration of random faults is mttr_s", fault.lasts_s, "mttr_s")
    return fault


def _check_scripted(fault: Fault, where: str) -> None:
    if fault.mttr_s is not None:
        raise InputError(f"{where}: the duration of a fault with at_s is lasts_s", fault.mttr_s, "lasts_s")
    wanted, other = ("node", "replica") if fault.kind == "node" else ("replica", "node")
    if getattr(fault, wanted) is None:
        raise InputError(f"{where}: kind {fault.kind} needs {wanted}", None, f"{wanted}: 0")
    if getattr(fault, other) is not None:
        raise InputError(f"{where}: kind {fault.kind} has no {other}", getattr(fault, other), wanted)
