"""The outputs of operators on the meta device, computed once for equal arguments.

A network repeats its layers, and many meta kernels of torch are slow functions of Python. What an operator returns
depends on the extents, strides and dtypes of its arguments alone, so that a second equal call makes empty tensors of
the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Extents, strides and dtype of a tensor.
Form = tuple[torch.Size, tuple[int, ...], torch.dtype]


class _Unkeyed(Exception):
    """An argument whose form does not determine what the operator does."""


@dataclass(slots=True)
class MetaCache:
    """Results of operators by operator and arguments."""

    known: dict[Any, tuple[Form, ...] | None] = field(default_factory=dict)

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the operator returns.

        Views, operators in place, results that share memory with an argument or are part of a larger storage, complex
        tensors and tensors with values are never cached.
        """
        with torch._C.DisableTorchFunction():
            try:
                key = (operator, _key(args), _key(tuple(kwargs.items())))
                forms = self.known.get(key, ())
            except (_Unkeyed, TypeError):
                return operator(*args, **kwargs)
            if forms:
                made = [torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in forms]
                return made[0] if len(made) == 1 and not _returns_several(operator) else tuple(made)
            result = operator(*args, **kwargs)
            if forms is not None:
                self.known[key] = _forms(operator, args, kwargs, result)
            return result


def _key(value: Any) -> Any:
    """Return what a part of the arguments contributes to the key; types too, since 1, 1.0 and True are equal.

    Raises:
        _Unkeyed: A tensor has values, or a form that extents, strides and dtype do not describe.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_meta or value.is_complex():
            raise _Unkeyed
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_key, value))
    if isinstance(value, dict):
        raise _Unkeyed
    return type(value), value


def _returns_several(operator: Any) -> bool:
    return len(operator._schema.returns) > 1


def _forms(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[Form, ...] | None:
    """Return the forms of the results; None where empty tensors of these forms are not the same."""
    schema = operator._schema
    if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
        return None
    outputs = list(result) if isinstance(result, tuple) else [result]
    if isinstance(result, tuple) != _returns_several(operator) or not all(type(o) is torch.Tensor for o in outputs):
        return None
    given = {t.untyped_storage()._cdata for t in tensors_in((*args, *kwargs.values()))}
    for output in outputs:
        storage = output.untyped_storage()
        if not output.is_meta or output.is_complex() or storage._cdata in given:
            return None
        alone = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype, device="meta")
        if alone.untyped_storage().nbytes() != storage.nbytes():
            return None
    return tuple((o.shape, o.stride(), o.dtype) for o in outputs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value: itself, or those in lists, tuples and mappings at any depth."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for inner in value for tensor in tensors_in(inner)]
    if isinstance(value, Mapping):
        return [tensor for inner in value.values() for tensor in tensors_in(inner)]
    return []


class EqualCallsOnce(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Runs each meta kernel once for equal arguments, for other modes that are entered within this one."""

    def __init__(self, results: MetaCache) -> None:
        super().__init__()
        self.results = results

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the result of an operator, from the cache where an equal call came before."""
        return self.results.call(func, args, kwargs or {})
