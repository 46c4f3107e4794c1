"""The record of one run of a module on the meta device: every operator, its bytes, and the tensors in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from catalogs.trace.equal_modules import CallArguments, CallResults, EqualModules, Unrepeatable
from catalogs.trace.kinds import (
    FILLS,
    TABLE_READS,
    TABLE_WRITES,
    Dims,
    attention_dims,
    base_name,
    dims_of,
    kernel_name,
    kind_of,
    runs_no_kernel,
)
from catalogs.trace.meta_cache import MetaCache, tensors_in

#: Names of dtypes as network files spell them.
DTYPES: Final = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_DTYPE_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as network files spell it."""
    return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


@dataclass(slots=True)
class Amount:
    """An amount of memory: elements of the run's dtype, bytes of tensors of other dtypes, elements of parameters."""

    elements: int = 0
    fixed_bytes: int = 0
    weights: int = 0


@dataclass(slots=True)
class RecordedOperator:
    """One operator of a run, which nothing changes later.

    `live` is what is in memory while it runs, its outputs included. `widths` has the extents of each dim, 0 for a
    number.
    """

    module: str
    kind: str
    operator: str
    dims: Dims
    reads: Amount
    writes: Amount
    live: Amount
    dtype: str | None
    widths: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Recording:
    """Every operator of one run, in order."""

    operators: list[RecordedOperator] = field(default_factory=list)


def elements_in_memory(tensor: torch.Tensor) -> int:
    """Return the elements that a tensor touches: those of expanded dimensions count once."""
    return prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or n == 0)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Records each operator that reaches the dispatcher."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype, recording: Recording, results: MetaCache) -> None:
        super().__init__()
        self.dtype = dtype
        self.recording = recording
        self.stack = [""]
        tensors = [*module.parameters(), *module.buffers()]
        self.parameters = {t.untyped_storage()._cdata for t in tensors}
        self._kept = tensors  # so that no other storage takes their addresses
        self.live: dict[int, tuple[weakref.ref[Any], int, bool]] = {}
        self.live_elements = 0
        self.live_bytes = 0
        self.results = results

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard costs more than a meta kernel

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and record it."""
        result = self.results.call(func, args, kwargs or {})
        outputs = tensors_in(result)
        for output in outputs:
            self.hold(output)
        if (outputs or func._schema.is_mutable) and not runs_no_kernel(func):
            self._record(func, args, kwargs or {}, outputs)
        return result

    def hold(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor as live until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.parameters or key in self.live:
            return
        own = tensor.dtype == self.dtype
        amount = storage.nbytes() // tensor.element_size() if own else storage.nbytes()

        def freed(_: object) -> None:
            if self.live.pop(key, None) is not None:
                self._count(-amount, own)

        self.live[key] = (weakref.ref(storage, freed), amount, own)
        self._count(amount, own)

    def _count(self, amount: int, own: bool) -> None:
        if own:
            self.live_elements += amount
        else:
            self.live_bytes += amount

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: list[torch.Tensor]) -> None:
        name, kind = base_name(func), kind_of(func)
        inputs = tensors_in((*args, *kwargs.values()))
        if name.removesuffix("_") in FILLS:
            inputs = inputs[1:]
        written = outputs
        reads = self.amount(inputs)
        if name in TABLE_READS:
            reads = self.amount(inputs[1:])
            _add(reads, self.amount_of(outputs))
        elif name in TABLE_WRITES:
            reads, written = self.amount(inputs[1:]), inputs[-1:]
        self.add(
            kind,
            kernel_name(func, kwargs),
            dims_of(kind, name, args, outputs),
            inputs,
            reads,
            written,
        )

    def add(
        self,
        kind: str,
        operator: str,
        dims: Dims,
        inputs: list[torch.Tensor],
        reads: Amount,
        written: list[torch.Tensor],
    ) -> None:
        """Append an operator to the recording, with its place in the modules and the memory that is live after it.

        Args:
            kind: The kind of operator, which decides how it is priced.
            operator: The name of its kernel.
            dims: Its sizes.
            inputs: The tensors that it reads.
            reads: How much it reads.
            written: The tensors that it writes.
        """
        computed = next((t.dtype for t in (*written, *inputs) if t.is_floating_point()), None)
        dtype = None if computed in (None, self.dtype) else dtype_name(computed)
        self.recording.operators.append(
            RecordedOperator(
                self.stack[-1],
                kind,
                operator,
                dims,
                reads,
                self.amount_of(written),
                Amount(self.live_elements, self.live_bytes),
                dtype,
                tuple((name, len(dim) if isinstance(dim, tuple) else 0) for name, dim in dims.items()),
            )
        )

    def amount(self, tensors: Iterable[torch.Tensor]) -> Amount:
        """Return how much the reading of tensors moves; parameters of the run's dtype are counted apart."""
        total = Amount()
        seen = set()
        for tensor in tensors:
            storage = tensor.untyped_storage()._cdata
            place = (storage, tensor.storage_offset(), tensor.shape, tensor.stride())
            if place in seen:
                continue
            seen.add(place)
            if storage in self.parameters and tensor.dtype == self.dtype:
                total.weights += elements_in_memory(tensor)
            else:
                _add(total, self.amount_of([tensor]))
        return total

    def amount_of(self, tensors: Iterable[torch.Tensor]) -> Amount:
        """Return how much tensors hold."""
        total = Amount()
        for tensor in tensors:
            elements = elements_in_memory(tensor)
            if tensor.dtype == self.dtype:
                total.elements += elements
            else:
                total.fixed_bytes += elements * tensor.element_size()
        return total


def _add(total: Amount, other: Amount) -> None:
    total.elements += other.elements
    total.fixed_bytes += other.fixed_bytes
    total.weights += other.weights


class _AttentionAsOne(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped here
    """Keeps scaled dot-product attention as one operator, with the memory layout that the fused kernels return."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch; attention becomes one recorded operator."""
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,  # noqa: ARG002 - the signature of torch
        is_causal: bool = False,
        scale: float | None = None,  # noqa: ARG002
        enable_gqa: bool = False,  # noqa: ARG002
    ) -> torch.Tensor:
        *lead, queries, _ = query.shape
        if len(lead) >= 2:  # fused kernels write heads next to each other
            heads = lead.pop()
            output = query.new_empty((*lead, queries, heads, value.shape[-1])).transpose(-2, -3)
        else:
            output = query.new_empty((*lead, queries, value.shape[-1]))
        inputs = [query, key, value, *([attn_mask] if attn_mask is not None else [])]
        dims = attention_dims(query, key, value, is_causal, attn_mask is not None)
        operator = "scaled_dot_product_attention"
        self.recorder.add("attention", operator, dims, inputs, self.recorder.amount(inputs), [output])
        return output


#: Operators of a call from which repeating it costs less than running it.
FEWEST_OPERATORS: Final = 8


@dataclass(frozen=True, slots=True)
class _Call:
    """What one call of a module did: its operators, what lived before it, and how to make its results again."""

    module: str
    operators: list[RecordedOperator]
    live: Amount
    results: CallResults


class _Calls:
    """Runs the modules of a recording: names their operators, and repeats the calls of equal modules."""

    def __init__(self, recorder: _Recorder, names: Mapping[int, str], kinds: Mapping[int, int]) -> None:
        self.recorder = recorder
        self.names = names
        self.kinds = kinds
        self.known: dict[Any, _Call | None] = {}
        self.small: set[int] = set()

    def call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what a module returns, from an equal call if there was one."""
        stack = self.recorder.stack
        name = self.names.get(id(module), stack[-1])
        kind = self.kinds.get(id(module))
        arguments = None
        if kind is not None and kind not in self.small:
            with suppress(Unrepeatable):
                arguments = CallArguments(args, kwargs, self.recorder.parameters.__contains__)
        stack.append(name)
        try:
            if arguments is None:
                return original(module, *args, **kwargs)
            key = (kind, arguments.key)
            if key not in self.known:
                return self._first(key, arguments, original, module, args, kwargs)
            known = self.known[key]
            return original(module, *args, **kwargs) if known is None else self._repeat(known, arguments)
        finally:
            stack.pop()

    def _first(
        self,
        key: Any,
        arguments: CallArguments,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a module, and keep what it did where that can be repeated."""
        recorder = self.recorder
        start, name = len(recorder.recording.operators), recorder.stack[-1]
        before, live = dict(recorder.live), Amount(recorder.live_elements, recorder.live_bytes)
        result = original(module, *args, **kwargs)
        self.known[key] = None
        operators = recorder.recording.operators[start:]
        if len(operators) < FEWEST_OPERATORS:
            self.small.add(key[0])
            return result
        try:
            results = CallResults(result, arguments)
            unchanged = CallArguments(args, kwargs, recorder.parameters.__contains__).key == arguments.key
        except Unrepeatable:
            return result
        kept = all(recorder.live.get(storage) is value for storage, value in before.items())
        if unchanged and kept and recorder.live.keys() - before.keys() == results.new.keys():
            inside = f"{name}."
            if all(op.module == name or op.module.startswith(inside) for op in operators):
                self.known[key] = _Call(name, operators, live, results)
        return result

    def _repeat(self, known: _Call, arguments: CallArguments) -> Any:
        """Record what an equal call did, and return its results again."""
        recorder = self.recorder
        elements = recorder.live_elements - known.live.elements
        fixed = recorder.live_bytes - known.live.fixed_bytes
        name, start = recorder.stack[-1], len(known.module)
        recorder.recording.operators += [
            RecordedOperator(
                name + op.module[start:],
                op.kind,
                op.operator,
                op.dims,
                op.reads,
                op.writes,
                Amount(op.live.elements + elements, op.live.fixed_bytes + fixed),
                op.dtype,
                op.widths,
            )
            for op in known.operators
        ]
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            result = known.results.make(arguments)
            for tensor in tensors_in(result):
                recorder.hold(tensor)
        return result


@contextmanager
def _calls_of_modules(calls: _Calls) -> Iterator[None]:
    """Pass every call of a module through `calls`."""
    original = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return calls.call(original, module, args, kwargs)

    torch.nn.Module.__call__ = call
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original


def record(
    module: torch.nn.Module,
    run: Callable[[], Any],
    inputs: Iterable[Any],
    dtype: torch.dtype,
    equal: EqualModules | None = None,
    results: MetaCache | None = None,
) -> Recording:
    """Return what one call of `run` does.

    Args:
        module: The module whose parameters are not activations and whose submodules name the operators.
        run: Runs the module on tensors of the meta device.
        inputs: The arguments of the run, whose tensors are live from the start.
        dtype: The dtype in which the network computes.
        equal: Which submodules are built alike, of which one is run; without it every module runs.
        results: The results of operators that earlier runs found.
    """
    recording = Recording()
    recorder = _Recorder(module, dtype, recording, MetaCache() if results is None else results)
    names = equal.names if equal else {id(m): name for name, m in module.named_modules()}
    calls = _Calls(recorder, names, equal.kinds if equal else {})
    for tensor in tensors_in(list(inputs)):
        recorder.hold(tensor)
    collecting = gc.isenabled()
    gc.disable()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.device("meta"))
            stack.enter_context(_calls_of_modules(calls))
            stack.enter_context(_AttentionAsOne(recorder))
            stack.enter_context(recorder)
            result = run()
            del result
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        if collecting:
            gc.enable()
    return recording
