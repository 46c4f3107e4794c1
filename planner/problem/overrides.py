"""Keys of deployment.yaml on a command line: `KEY=VALUE`, and what of it a search keeps fixed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from catalogs.deployments.layout import Layout
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError, nearest_name
from catalogs.io.yaml_files import check
from planner.problem.candidate import DeploymentOverrides

#: Keys that follow from others, or are said by an option of their own.
WHATIF_ELSEWHERE: Final = {"hardware": "--hw", "kv_blocks": "gpu_memory_utilization"}

PLAN_ELSEWHERE: Final = {
    **WHATIF_ELSEWHERE,
    "model": "--model",
    "engine": "--engine",
    "replicas": "--rate",
    "weight_dtype": "--precision",
    "disaggregation": "--also disaggregated",
    "pools": "simulate DEPLOYMENT.yaml",
    "router": "simulate DEPLOYMENT.yaml",
    "router_staleness_s": "simulate DEPLOYMENT.yaml",
    "faults": "plan spares",
    "retries": "plan spares",
}

#: Keys that the search chooses itself; fixing one leaves the others to it.
LAYOUT_KEYS: Final = tuple(f.name for f in fields(Layout))

CHOSEN: Final = (*LAYOUT_KEYS, "kv_dtype", "max_num_seqs", "max_num_batched_tokens")


def parse_keys(settings: Sequence[str], elsewhere: Mapping[str, str] = WHATIF_ELSEWHERE) -> dict[str, object]:
    """`KEY=VALUE` of deployment.yaml, the value as YAML. Raises InputError naming the nearest key."""
    import yaml

    found: dict[str, object] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise InputError("a setting is KEY=VALUE of deployment.yaml", setting, "kv_dtype=fp8")
        if key not in Deployment.model_fields or key in elsewhere:
            near = elsewhere.get(key) or nearest_name(key, _settable(elsewhere)) or "kv_dtype"
            raise InputError("this is no key of deployment.yaml that can be set", key, near)
        if key in found:
            raise InputError("a key is set once", setting, f"{key}={json.dumps(found[key])}")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"the value of {key} is no YAML", value, f"{key}=1") from None
    return found


def _settable(elsewhere: Collection[str]) -> list[str]:
    return [key for key in Deployment.model_fields if key not in elsewhere]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What every candidate of a search has: values of keys it would choose (`chosen`), and further keys (`rest`)."""

    values: Mapping[str, object]

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Overrides:
        """Raises InputError for a key or a value that deployment.yaml does not have."""
        values = parse_keys(settings, PLAN_ELSEWHERE)
        check(Deployment, {"model": "", "hardware": "", **values}, "--set")
        return cls(values)

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def layout(self) -> dict[str, Any]:
        return {k: v for k, v in self.values.items() if k in LAYOUT_KEYS}

    @property
    def rest(self) -> DeploymentOverrides:
        """As `Candidate.rest` keeps it."""
        return DeploymentOverrides({k: v for k, v in self.values.items() if k not in (*CHOSEN, "autoscaling")})

    @property
    def texts(self) -> tuple[str, ...]:
        """As `parse` takes them."""
        return tuple(f"{k}={json.dumps(v)}" for k, v in self.values.items())

    def number(self, key: str) -> int | None:
        """Of a limit; None where it is left to the search."""
        found = self.values.get(key)
        return found if isinstance(found, int) else None


NOT_FIXED: Final = Overrides({})
