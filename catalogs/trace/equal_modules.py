"""Modules that are built alike, such as the layers of a transformer: one is run and recorded, the others repeat it.

What a module launches depends on its class, its attributes, the forms of its parameters and those of its arguments. In
one run a second call of an equal module with arguments of equal forms therefore needs no run: its operators are those
of the first call under another name, and its results have the same forms. A call that changes its arguments, keeps a
tensor for later or frees one that lived before is never repeated. The caller verifies by runs without repetition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

import torch

#: Attributes that tell layers apart without an effect on their operators: transformers number their caches by them.
LAYER_NUMBERS: Final = frozenset({"layer_idx"})

#: Fields that every module has; of these only those below say what a module does.
_FIELDS: Final = frozenset(torch.nn.Module().__dict__) - {"training", "_forward_hooks", "_forward_pre_hooks"}

#: Attributes of attributes up to which objects are compared; deeper ones must be the same object.
DEPTH: Final = 4

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, Enum)


class Unrepeatable(Exception):
    """A value whose form does not tell what a module does with it."""


class EqualModules:
    """Which submodules of a module are built alike: a number for each kind that several of them share."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.names = {id(m): name for name, m in module.named_modules()}
        self._kept = module  # so that no other module takes these addresses
        self._descriptions: dict[int, Any] = {}
        self._numbers: dict[Any, int] = {}
        found = {id(m): self._number(self._describe(m)) for m in module.modules()}
        counts = Counter(found.values())
        self.kinds = {key: kind for key, kind in found.items() if counts[kind] > 1 and self._own_names(key, module)}

    def _own_names(self, key: int, module: torch.nn.Module) -> bool:
        """Return whether every part of a module is named under it; parts that several modules share are not."""
        name = self.names[key]
        part = module.get_submodule(name)
        prefix = f"{name}." if name else ""
        return all(self.names[id(inner)] == f"{prefix}{suffix}".removesuffix(".") for suffix, inner in _parts(part))

    def _number(self, description: Any) -> int:
        return self._numbers.setdefault(description, len(self._numbers))

    def _describe(self, module: torch.nn.Module) -> Any:
        key = id(module)
        if key not in self._descriptions:
            self._descriptions[key] = key  # a cycle: only the same module is equal
            tensors = (*module._parameters.items(), *module._buffers.items())
            self._descriptions[key] = (
                type(module),
                tuple((name, None if t is None else tensor_form(t)) for name, t in tensors),
                tuple(
                    (name, None if m is None else self._number(self._describe(m)))
                    for name, m in module._modules.items()
                ),
                self._attributes({k: v for k, v in vars(module).items() if k not in _FIELDS}, DEPTH),
            )
        return self._descriptions[key]

    def _attributes(self, attributes: Mapping[Any, Any], depth: int) -> Any:
        return tuple((str(k), self._value(v, depth)) for k, v in attributes.items() if k not in LAYER_NUMBERS)

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, torch.Tensor):
            return tensor_form(value)
        if isinstance(value, torch.nn.Module):
            return self._number(self._describe(value)) if id(value) in self.names else id(value)
        if depth == 0 or (callable(value) and not hasattr(value, "__dict__")) or isinstance(value, type):
            return id(value)
        if isinstance(value, list | tuple):
            return type(value), tuple(self._value(inner, depth - 1) for inner in value)
        if isinstance(value, partial):  # its attributes do not name the function
            return type(value), self._value((value.func, value.args, value.keywords), depth)
        if isinstance(value, Mapping):
            return type(value), self._attributes(value, depth - 1)
        if hasattr(value, "__code__") or not hasattr(value, "__dict__"):
            return id(value)
        return type(value), self._attributes(vars(value), depth - 1)


def _parts(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return list(module.named_modules(remove_duplicate=False))


def tensor_form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the extents, strides, offset and dtype of a tensor."""
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


class CallArguments:
    """The arguments of a call: a key of their forms, and their tensors."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], known: Callable[[int], bool]) -> None:
        """Read the arguments.

        Args:
            args: The arguments by position.
            kwargs: The arguments by name.
            known: Whether a storage is that of a parameter or buffer.

        Raises:
            Unrepeatable: An argument is no tensor of the meta device, plain value or tuple of these, nor a list or
                mapping of plain values: those with tensors serve to exchange tensors between calls.
        """
        self.tensors: list[torch.Tensor] = []
        self._known = known
        self._storages: dict[int, int] = {}
        with torch._C.DisableTorchFunction():
            values = tuple((name, self._form(value)) for name, value in kwargs.items())
            self.key = (tuple(map(self._form, args)), values)

    def find(self, tensor: torch.Tensor) -> tuple[int, bool]:
        """Return the number of the argument that a tensor is, or whose storage it has (-1: none), and whether it is."""
        for i, argument in enumerate(self.tensors):
            if argument is tensor:
                return i, True
        storage = tensor.untyped_storage()._cdata
        return next((i for i, a in enumerate(self.tensors) if a.untyped_storage()._cdata == storage), -1), False

    def _form(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if not value.is_meta or value.is_conj() or value.is_neg():
                raise Unrepeatable
            self.tensors.append(value)
            storage = value.untyped_storage()._cdata
            number = self._storages.setdefault(storage, len(self._storages))
            return (*tensor_form(value), number, self._known(storage))
        if isinstance(value, _PLAIN):
            return kind, value
        if kind is tuple or kind is torch.Size:
            return kind, tuple(map(self._form, value))
        tensors = len(self.tensors)
        if kind is list:
            form: Any = (kind, tuple(map(self._form, value)))
        elif kind is dict:
            form = (kind, tuple((name, self._form(inner)) for name, inner in value.items()))
        else:
            raise Unrepeatable
        if len(self.tensors) > tensors:
            raise Unrepeatable
        return form


@dataclass(frozen=True, slots=True)
class ResultTensor:
    """A tensor among the results: a new one, in a storage by its number and bytes, or one in that of an argument."""

    form: tuple[Any, ...]
    argument: int
    same: bool
    storage: int
    nbytes: int

    def make(self, arguments: list[torch.Tensor], storages: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return the tensor for a call with these arguments."""
        size, stride, offset, dtype = self.form
        if self.same:
            return arguments[self.argument]
        if self.argument >= 0:
            return arguments[self.argument].as_strided(size, stride, offset)
        if self.storage not in storages:
            storages[self.storage] = torch.empty(self.nbytes, dtype=torch.uint8, device="meta")
        return torch.empty(0, dtype=dtype, device="meta").set_(
            storages[self.storage].untyped_storage(), offset, size, stride
        )


class CallResults:
    """How to make the results of a call again."""

    def __init__(self, result: Any, arguments: CallArguments) -> None:
        """Read the results of a call.

        Raises:
            Unrepeatable: A result is no tensor, plain value, list, tuple or mapping, or has another type than the
                argument in whose storage it is.
        """
        self.new: dict[int, int] = {}  # numbers of new storages by their address
        with torch._C.DisableTorchFunction():
            self._plan = self._read(result, arguments)  # without the tensors themselves, which would live on

    def _read(self, value: Any, arguments: CallArguments) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            if not value.is_meta or value.is_conj() or value.is_neg():
                raise Unrepeatable
            storage = value.untyped_storage()
            argument, same = arguments.find(value)
            if argument >= 0:
                if value.dtype != arguments.tensors[argument].dtype:
                    raise Unrepeatable
                return ResultTensor(tensor_form(value), argument, same, -1, 0)
            number = self.new.setdefault(storage._cdata, len(self.new))
            return ResultTensor(tensor_form(value), -1, False, number, storage.nbytes())
        if kind is tuple or kind is list:
            return kind, [self._read(inner, arguments) for inner in value]
        if kind is dict:
            return kind, {name: self._read(inner, arguments) for name, inner in value.items()}
        if isinstance(value, _PLAIN):
            return None, value
        raise Unrepeatable

    def make(self, arguments: CallArguments) -> Any:
        """Return equal results for a call with arguments of equal forms; no mode of torch may be active."""
        return _build(self._plan, arguments.tensors, {})


def _build(plan: Any, arguments: list[torch.Tensor], storages: dict[int, torch.Tensor]) -> Any:
    if isinstance(plan, ResultTensor):
        return plan.make(arguments, storages)
    kind, content = plan
    if kind is None:
        return content
    if kind is dict:
        return {name: _build(inner, arguments, storages) for name, inner in content.items()}
    return kind(_build(inner, arguments, storages) for inner in content)
