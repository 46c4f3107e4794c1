"""Draws random values for pydantic models from their schemas, so that new keys need no change here."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

#: Draws a value for a key whose schema alone does not define valid values: a name, a table, or a block that another
#: module reads.
Domain = Callable[["Drawer"], Any]
#: Values that users may write by mistake, and that hardly any key accepts.
NONSENSE: tuple[Any, ...] = (-1, 0, 0.5, 1e308, 2**70, "", "x", "null", True, [], {}, [1, 2], {"x": 1}, float("nan"))


class UnknownKey(Exception):
    """The schema of a key does not define valid values, and no domain is given for the key."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a number; None if it is unbounded."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    @classmethod
    def of(cls, metadata: tuple[Any, ...]) -> Bounds:
        low = high = None
        open_low = open_high = False
        for item in metadata:
            low = getattr(item, "ge", low)
            if getattr(item, "gt", None) is not None:
                low, open_low = item.gt, True
            high = getattr(item, "le", high)
            if getattr(item, "lt", None) is not None:
                high, open_high = item.lt, True
        return cls(low, high, open_low, open_high)


class Drawer:
    """Draws values of models.

    Attributes:
        rng: The source of random numbers.
        domains: Functions that draw values, by the path of a key ("autoscaling.target") or by its last part.
        chance: Probability that an optional key is written.
        wild: Probability that a key has a value of NONSENSE.
    """

    def __init__(self, rng: Random, domains: Mapping[str, Domain], chance: float, wild: float = 0.0) -> None:
        self.rng, self.domains, self.chance, self.wild = rng, domains, chance, wild

    def model(self, cls: type[BaseModel], path: str = "", chance: float | None = None) -> dict[str, Any]:
        """Return the required keys of a model and some of the optional ones, with random values."""
        chance = self.chance if chance is None else chance
        found = {}
        for name, field in cls.model_fields.items():
            if field.annotation is not type(None) and (field.is_required() or self.rng.random() < chance):
                found[name] = self.key(name, field, f"{path}.{name}" if path else name)
        return found

    def key(self, name: str, field: FieldInfo, path: str) -> Any:
        if self.rng.random() < self.wild:
            return self.rng.choice(NONSENSE)
        domain = self.domains.get(path) or self.domains.get(name)
        if domain is not None:
            return domain(self)
        return self.value(field.annotation, tuple(field.metadata), path)

    def value(self, annotation: Any, metadata: tuple[Any, ...], path: str) -> Any:
        """Return a random value of a type.

        Raises:
            UnknownKey: The type does not define which values are valid.
        """
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            extra = [m for a in args[1:] for m in (a.metadata if isinstance(a, FieldInfo) else [a])]
            return self.value(args[0], (*metadata, *extra), path)
        if origin in (Union, types.UnionType):
            real = [a for a in args if a is not type(None)]
            if len(real) < len(args) and self.rng.random() < 0.05:
                return None
            return self.value(self.rng.choice(real), metadata, path)
        if origin is Literal:
            return self.rng.choice(args)
        if origin in (tuple, list):
            n = self.rng.randrange(4) if origin is list or args[-1] is Ellipsis else len(args)
            return [
                self.value(args[0] if i >= len(args) or args[-1] is Ellipsis else args[i], (), path) for i in range(n)
            ]
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.model(annotation, path, 0.5)
        return self._number(annotation, Bounds.of(metadata), path)

    def _number(self, annotation: Any, bounds: Bounds, path: str) -> bool | int | float:
        if annotation is bool:
            return self.rng.random() < 0.5
        if annotation is int:
            low = 0 if bounds.low is None else int(bounds.low) + bounds.open_low
            return self.whole(low, min(low + 64, int(bounds.high) if bounds.high is not None else low + 64))
        if annotation is float:
            return self.real(bounds)
        raise UnknownKey(f"{path}: give {annotation} a domain in fuzz_cases.py")

    def whole(self, low: int, high: int) -> int:
        """Return a whole number between two bounds, both included, from a log-uniform distribution."""
        return min(high, low - 1 + int(exp(self.rng.uniform(0.0, log(high - low + 2)))))

    def real(self, bounds: Bounds) -> float:
        """Return a number from a uniform distribution between two bounds, or a log-uniform one above a lower bound."""
        low = bounds.low or 0.0
        if bounds.high is not None:
            return round(self.rng.uniform(low + 1e-3 * bounds.open_low, bounds.high - 1e-3 * bounds.open_high), 4)
        if not bounds.open_low and self.rng.random() < 0.15:
            return low
        return float(f"{low + exp(self.rng.uniform(log(0.01), log(100.0))):.3g}")
