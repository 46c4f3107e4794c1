"""Keys of deployment.yaml on a command line (`KEY=VALUE`), and those that a search keeps fixed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from catalogs.deployments.key_texts import parse_settings, unknown_key
from catalogs.deployments.layout import Layout
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError
from catalogs.io.yaml_files import validate_as
from planner.problem.candidate import DeploymentOverrides
from planner.problem.request_keys import request_keys

#: Keys that follow from others or have their own option, and what to use instead.
WHATIF_ELSEWHERE: Final = {
    "hardware": "--hw",
    "kv_blocks": "gpu_memory_utilization",
    "rate": "--rate",
    "workload": "--workload",
}

PLAN_ELSEWHERE: Final = {
    **WHATIF_ELSEWHERE,
    "model": "--model",
    "engine": "--engine",
    "replicas": "--rate",
    "weight_dtype": "--precision",
    "disaggregation": "also=disaggregated",
    "pools": "simulate DEPLOYMENT.yaml",
    "router": "simulate DEPLOYMENT.yaml",
    "router_staleness_s": "simulate DEPLOYMENT.yaml",
    "faults": "plan spares",
    "retries": "plan spares",
}

_PLAN: Final = "`plan` makes a new plan with it"

#: Keys that the search chooses; if one is fixed, the search still chooses the others.
LAYOUT_KEYS: Final = tuple(f.name for f in fields(Layout))

CHOSEN: Final = (*LAYOUT_KEYS, "kv_dtype", "max_num_seqs", "max_num_batched_tokens")


def parse_keys(settings: Sequence[str], elsewhere: Mapping[str, str] = WHATIF_ELSEWHERE) -> dict[str, object]:
    """Return the keys of deployment.yaml that `KEY=VALUE` texts set; values are YAML.

    A key inside a block is written with dots, for example disaggregation.prefill_replicas=2; see `with_keys`.

    Raises:
        InputError: A key cannot be set (the error names the nearest one), is set twice, or its value is not YAML.
    """
    return parse_settings(
        settings, lambda key: check_key(key if elsewhere is PLAN_ELSEWHERE else key.partition(".")[0], elsewhere)
    )


def check_key(key: str, elsewhere: Mapping[str, str]) -> None:
    """Check that a key of deployment.yaml can be set.

    Raises:
        InputError: deployment.yaml has no such key, or the key is set in another way (see `elsewhere`).
    """
    if key in elsewhere:
        raise InputError("this key of deployment.yaml is not set here", key, elsewhere[key])
    if key not in Deployment.model_fields:
        if key in {name.partition(".")[0] for name in request_keys()}:
            raise InputError("keys of deployment.yaml are set here, and this one is of a request", key, hint=_PLAN)
        raise unknown_key("deployment.yaml has no such key", key, settable(elsewhere))


def settable(elsewhere: Collection[str]) -> list[str]:
    """Return the keys of deployment.yaml, except those that are set elsewhere."""
    return [key for key in Deployment.model_fields if key not in elsewhere]


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that every candidate of a search has, of keys that the search would choose and of further keys."""

    values: Mapping[str, object]

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Overrides:
        """Return the overrides with the keys and values of deployment.yaml, as a scenario file holds them.

        Raises:
            InputError: deployment.yaml does not accept a key or a value.
        """
        for key in values:
            check_key(key, PLAN_ELSEWHERE)
        written = validate_as(Deployment, {"model": "", "hardware": "", **values}, "a key of deployment.yaml")
        if written.encoder_pool is not None and "hardware" in written.encoder_pool.encode:
            rule = "plan places the encoder pool on the hardware of the other replicas"
            raise InputError(rule, "encoder_pool.encode.hardware", "simulate DEPLOYMENT.yaml")
        return cls(dict(values))

    @classmethod
    def read(cls, value: object) -> object:
        """Return the overrides of a mapping or of None; overrides are returned unchanged.

        Raises:
            InputError: The value is none of these, or deployment.yaml does not accept a key or a value.
        """
        if isinstance(value, cls):
            return value
        if value is not None and not isinstance(value, dict):
            raise InputError("fixed holds keys of deployment.yaml with their values", value, "{kv_dtype: fp8}")
        return cls.of(value or {})

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def layout(self) -> dict[str, Any]:
        """Return the fixed keys of the layout."""
        return {k: v for k, v in self.values.items() if k in LAYOUT_KEYS}

    @property
    def rest(self) -> DeploymentOverrides:
        """Return the keys that the search does not choose, for `Candidate.rest`."""
        return DeploymentOverrides({k: v for k, v in self.values.items() if k not in (*CHOSEN, "autoscaling")})

    def number(self, key: str) -> int | None:
        """Return the value of a batching limit; None if it is left to the search."""
        found = self.values.get(key)
        return found if isinstance(found, int) else None


NOT_FIXED: Final = Overrides({})
