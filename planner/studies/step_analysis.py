"""One engine step broken down: its operators, what bounds them, its memory, and how it scales.

A decode step holds `batch` sequences with `context` tokens each and generates one token for each of them. Prefill
computes all of their prompts, in as many steps as the engine splits them into; the figures are then sums over these
steps. All figures are of one accelerator of one replica with `tensor_parallel` accelerators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment, Multimodal
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.charts import time_text
from catalogs.ui.words import counted, evidence_words, percent
from catalogs.workloads.media import layouts_for
from catalogs.workloads.media_blocks import MOST_ITEMS, parse_item
from planner.studies.analyzed_steps import AnalyzedSteps, PromptItems, PromptLimits, decode_step, prefill_steps
from planner.studies.published_table import published_decode_table
from simulator.analysis.operators import (
    BOUND_WORDS,
    OperatorRow,
    operator_document,
    origin_shares,
    seconds_by_bound,
    step_seconds,
    together,
)
from simulator.costs.compile import compile_step_cost
from simulator.costs.partition import BatchRows
from simulator.costs.step_cost import StepCost
from simulator.layers.encoder import cross_cache_bytes
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from simulator.memory.plan import MemoryPlan, sequence_bytes, size_memory

#: Version of the form of an analysis of a step.
SCHEMA_VERSION: Final = 1

STAGES: Final = ("decode", "prefill")

#: Rows of the table of precisions: bits, weight data types and KV cache data types. The first data type that the device
#: and the engine support is used.
PRECISIONS: Final = (
    (16, ("bf16", "fp16"), ("bf16", "fp16")),
    (8, ("fp8", "int8"), ("fp8", "bf16", "fp16")),
    (4, ("fp4", "int4"), ("fp8", "bf16", "fp16")),
)

#: Maximum number of sequences. A judgement: larger numbers are probably typing errors.
MOST_SEQUENCES: Final = 65_536

#: Maximum number of prompt tokens of all sequences together. A judgement: larger numbers are probably typing errors.
MOST_PROMPT_TOKENS: Final = 2**24

#: Multiples of the batch and of the context in the table of scaling.
STEPS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class StepQuery:
    """The step to analyze.

    None stands for the model's own weight data type, the engine's KV cache data type, and all named accelerators.
    `images` of `resolution` are at the start of every prompt; their tokens are a part of its context. A resolution of
    `640x360x32` makes them videos of 32 frames, and `30s` audio.

    Raises:
        InputError: The stage is unknown, or the batch or the context is too small or too large.
    """

    model: str
    hardware: str
    batch: int
    context: int
    stage: str = "decode"
    engine: str = "vllm"
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    tensor_parallel: int | None = None
    images: int = 0
    resolution: str = "1024x1024"

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise InputError("a stage is decode or prefill", self.stage, nearest_name(self.stage, STAGES) or STAGES[0])
        for name in ("batch", "context"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is a whole number of at least 1", getattr(self, name), "1")
        if self.images and self.stage != "prefill":
            raise InputError("images are encoded with prompts", self.stage, "stage prefill")
        if not 0 <= self.images <= MOST_ITEMS:
            raise InputError(f"images are a number from 0 to {MOST_ITEMS:,}", self.images, "1")
        parse_item(self.resolution)
        if self.batch > MOST_SEQUENCES:
            raise InputError(f"a batch is at most {MOST_SEQUENCES} sequences", self.batch, str(MOST_SEQUENCES))
        if self.stage == "prefill" and self.batch * self.context > MOST_PROMPT_TOKENS:
            most = max(MOST_PROMPT_TOKENS // self.context, 1)
            rule = f"all prompts together may have at most {MOST_PROMPT_TOKENS} tokens"
            raise InputError(rule, f"{self.batch} x {self.context}", f"--batch {most}")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of the step, or of all steps of the prompts.

    Attributes:
        roofline_s: Lower bound by the roofline of the hardware.
        device_s: Time on the device according to the calibration.
        engine_s: Time in the engine, including its host.
    """

    roofline_s: float
    device_s: float
    engine_s: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one accelerator, bytes.

    Attributes:
        device_bytes: The whole memory.
        usable_bytes: The part that the engine may use.
        weights_bytes: The weights.
        activation_bytes: What the engine reserves for activations at its own limits.
        runtime_bytes: The runtime and its libraries.
        kv_batch_bytes: The KV cache of this batch at this context.
        kv_room_bytes: The memory that remains for the KV cache.
    """

    device_bytes: float
    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    kv_batch_bytes: float
    kv_room_bytes: float

    @property
    def fits(self) -> bool:
        """Return True if the KV cache of the batch fits."""
        return self.kv_batch_bytes <= self.kv_room_bytes


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """The same step with other data types of the weights and of the KV cache."""

    bits: int
    weight_dtype: str
    kv_dtype: str
    time: StepTime
    held: MemoryUse
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """The same step with another batch or context."""

    quantity: str  # "batch" | "context"
    value: int
    time: StepTime
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a step, see the module."""

    query: StepQuery
    resolved: ResolvedDeployment
    steps: AnalyzedSteps
    rows: list[OperatorRow]
    time: StepTime
    held: MemoryUse
    precisions: list[PrecisionRow]
    scaling: list[ScalingRow]
    bundle: Bundle
    notices: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens per second of engine time."""
        return self.steps.tokens / self.time.engine_s


def analyze(query: StepQuery) -> Analysis:
    """Return the analysis of a step.

    Raises:
        InputError: A name is unknown, or the context exceeds the positions of the model.
    """
    replica = PricedReplica.of(query)
    steps = replica.steps(query)
    rows = steps.operators(replica.cost.tables)
    own_time = replica.time(steps, rows)
    known = {(replica.resolved.weight_dtype, replica.resolved.kv_dtype): rows}
    precisions = (_precision(query, known, bits, weights, caches) for bits, weights, caches in PRECISIONS)
    return Analysis(
        query=query,
        resolved=replica.resolved,
        steps=steps,
        rows=sorted(rows, key=lambda r: -r.seconds),
        time=own_time,
        held=replica.held(query),
        precisions=[row for row in precisions if row is not None],
        scaling=_scaling(replica, query, own_time),
        bundle=replica.bundle,
        notices=tuple(dict.fromkeys(replica.notices(query, steps))),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """A deployment with its calibration, which is equal to another while both were read from the same tables."""

    resolved: ResolvedDeployment
    bundle: Bundle

    def __hash__(self) -> int:
        r = self.resolved
        return hash((r.model.name, r.hardware.text, r.weight_dtype, r.kv_dtype))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Priced):
            return NotImplemented
        return self.bundle.same_tables(other.bundle) and self.resolved == other.resolved


@lru_cache(maxsize=64)
def _step_cost(priced: _Priced) -> StepCost:
    """Return the cost of steps, which questions about other batches and contexts share."""
    return compile_step_cost(priced.resolved, priced.bundle)


@dataclass(frozen=True, slots=True)
class PricedReplica:
    """The replica of a query with its memory and the cost of its steps."""

    resolved: ResolvedDeployment
    memory: MemoryPlan
    bundle: Bundle
    cost: StepCost

    @classmethod
    def of(cls, query: StepQuery) -> PricedReplica:
        """Return the replica of a query.

        Raises:
            InputError: A name is unknown, or the context exceeds the positions of the model.
        """
        hardware = parse_hardware(query.hardware)
        every = 1 if hardware.accelerator.is_slice else hardware.accelerators_per_node
        keys = {name: getattr(query, name) for name in ("model", "engine", "hardware", "weight_dtype", "kv_dtype")}
        multimodal = Multimodal(modalities=(parse_item(query.resolution).modality,)) if query.images else None
        resolved = resolve(Deployment(**keys, tensor_parallel=query.tensor_parallel or every, multimodal=multimodal))
        longest = resolved.model.max_position_tokens
        if query.context > longest:
            rule = f"the context is beyond the {longest} positions of {resolved.model.name}"
            raise InputError(rule, query.context, str(longest))
        bundle = load_bundle(resolved.hardware.accelerator, engine=resolved.engine)
        return cls(resolved, size_memory(resolved), bundle, _step_cost(_Priced(resolved, bundle)))

    def steps(self, query: StepQuery) -> AnalyzedSteps:
        """Return the steps that the engine runs with its own limits."""
        if query.stage == "decode":
            return decode_step(query.batch, query.context)
        limits = self.resolved.limits
        cut = PromptLimits(limits.max_num_batched_tokens, limits.max_num_seqs, self.resolved.engine.chunked_prefill)
        return prefill_steps(query.batch, query.context, cut, self._images(query))

    def _images(self, query: StepQuery) -> PromptItems | None:
        """Return the images of every prompt; None without images.

        Raises:
            InputError: They have more tokens than the prompt.
        """
        if not query.images:
            return None
        layout = layouts_for(self.resolved.model, [parse_item(query.resolution)])[0]
        tokens = query.images * layout.tokens
        if tokens > query.context:
            rule = f"a prompt with {item_words(query.images, query.resolution)} has at least {tokens:,} tokens"
            raise InputError(rule, query.context, str(tokens))
        return PromptItems(layout, query.images, self.resolved.encoder_budget)

    def time(self, steps: AnalyzedSteps, rows: Iterable[OperatorRow]) -> StepTime:
        """Return the times of steps with these operators."""
        limit_s, device_s = (sum(times) for times in zip(*((r.roofline_s, r.seconds) for r in rows), strict=True))
        return StepTime(limit_s, device_s, steps.seconds(self.cost.step_s))

    def held(self, query: StepQuery) -> MemoryUse:
        """Return the memory of one accelerator while it holds the batch."""
        memory, shard = self.memory, Shard.of(self.resolved)
        return MemoryUse(
            self.resolved.hardware.accelerator.memory_bytes,
            memory.budget_bytes,
            memory.weights_bytes,
            memory.activation_bytes,
            memory.non_torch_bytes,
            query.batch * (sequence_bytes(shard, query.context) + cross_cache_bytes(shard)),
            memory.kv_bytes,
        )

    def notices(self, query: StepQuery, steps: AnalyzedSteps) -> Iterator[str]:
        """Yield what a reader must know about the figures."""
        yield from (*self.resolved.notices, *self.bundle.notices)
        yield from self.bundle.notices_for([call.op for call in step_calls(Shard.of(self.resolved), steps.shapes[0])])
        if steps.n > 1:
            budget = self.resolved.limits.max_num_batched_tokens
            split = f"{steps.n:,} steps of up to {budget:,} tokens (max_num_batched_tokens)"
            yield f"the engine runs these prompts in {split}; times, operators and bytes are of all of them"
        if self.memory.free_bytes <= 0:
            yield f"does not fit: {self.memory.why}"
        elif not self.held(query).fits:
            yield "the KV cache of this batch does not fit: the engine would run fewer sequences at once"


def _precision(
    query: StepQuery,
    known: Mapping[tuple[str, str], list[OperatorRow]],
    bits: int,
    weights: tuple[str, ...],
    caches: tuple[str, ...],
) -> PrecisionRow | None:
    """Return the row of a precision; None if the model has no such weights on this device.

    `known` holds operators by weight data type and KV cache data type.
    """
    names = CatalogLookup.of(query.model, query.engine, query.hardware)
    peaks = names.hardware.accelerator.peak_flops
    weight = next((w for w in weights if w in peaks), weights[-1])
    cache = next((c for c in caches if c in names.engine.kv_dtypes and (c in peaks or c == "fp8")), None)
    try:
        replica = PricedReplica.of(replace(query, weight_dtype=weight, kv_dtype=cache))
    except InputError:
        return None
    steps, r = replica.steps(query), replica.resolved
    rows = known.get((r.weight_dtype, r.kv_dtype)) or steps.operators(replica.cost.tables)
    work, moved = sum(x.flops for x in rows), sum(x.bytes for x in rows if x.kind != "collective")
    return PrecisionRow(bits, r.weight_dtype, r.kv_dtype, replica.time(steps, rows), replica.held(query), work, moved)


def _scaling(replica: PricedReplica, query: StepQuery, own_time: StepTime) -> list[ScalingRow]:
    """Return the same step with other batches and contexts, all priced together."""
    wanted = list(_multiples(replica, query))
    others = [steps for _, _, steps in wanted if steps is not None]
    times = iter(_times(replica, others))
    own = replica.steps(query)
    rows = []
    for quantity, value, steps in wanted:
        time = own_time if steps is None else next(times)
        rows.append(ScalingRow(quantity, value, time, (steps or own).tokens / time.engine_s))
    return rows


def _multiples(replica: PricedReplica, query: StepQuery) -> Iterator[tuple[str, int, AnalyzedSteps | None]]:
    """Yield (quantity, value, steps) for multiples of the batch and of the context; None for the step itself."""
    for quantity, most in (("batch", math.inf), ("context", replica.resolved.model.max_position_tokens)):
        own = getattr(query, quantity)
        for value in sorted({max(1, round(own * step)) for step in STEPS}):
            if value > most:
                break
            try:
                changed = replace(query, **{quantity: value})
                steps = None if value == own else replica.steps(changed)
            except InputError:  # larger than a query may be, or shorter than its images
                continue
            yield quantity, value, steps


def _times(replica: PricedReplica, every: Sequence[AnalyzedSteps]) -> Iterator[StepTime]:
    """Yield the times of each of several steps."""
    shapes = [shape for steps in every for shape in steps.shapes]
    times_s = step_seconds(replica.cost.tables, BatchRows.of_shapes(shapes)) if shapes else ()
    end = 0
    for steps in every:
        start, end = end, end + len(steps.shapes)
        limit_s, device_s = (float(each[start:end] @ np.array(steps.counts)) for each in times_s)
        yield StepTime(limit_s, device_s, steps.seconds(replica.cost.step_s))


def document(analysis: Analysis) -> dict[str, Any]:
    """Return the document of `plan analyze --json`, in SI units that the keys name."""
    a = analysis
    resolved = {
        "model": a.resolved.model.hf_id or a.resolved.model.name,
        "hardware": a.resolved.hardware.text,
        "weight_dtype": a.resolved.weight_dtype,
        "kv_dtype": a.resolved.kv_dtype,
        "tensor_parallel": a.resolved.layout.tensor_parallel,
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "question": asdict(a.query) | resolved,
        "step": asdict(a.time) | {"tokens_per_s": a.tokens_per_s, "n_steps": a.steps.n},
        "bound_s": seconds_by_bound(a.rows),
        "operators": [operator_document(row) for row in together(a.rows)],
        "memory": asdict(a.held) | {"fits": a.held.fits},
        "precisions": [asdict(p) for p in a.precisions],
        "scaling": [asdict(s) for s in a.scaling],
        "calibration": a.bundle.source_block() | origin_shares(a.rows),
        "notices": [*a.notices, *_faster_than_roofline(together(a.rows))],
    }


def _faster_than_roofline(rows: Iterable[OperatorRow]) -> Iterator[str]:
    """Yield the reason why operators are faster than their rooflines, if there are any."""
    names = [row.name for row in rows if row.seconds < row.roofline_s]
    if names:
        yield (
            f"faster than at the roofline: {', '.join(names)}. The roofline counts every byte as traffic of device "
            "memory, but passes over data that was just written are served by the cache"
        )


def published_document(query: StepQuery) -> dict[str, Any]:
    """Return a decode step of a dense model, 16 and 8 bit, by the conventions of a published table.

    See `planner.studies.published_table`.

    Raises:
        InputError: The stage is not decode, or the conventions do not cover the model.
    """
    if query.stage != "decode":
        raise InputError("the published table shows a decode step", query.stage, "decode")
    names = CatalogLookup.of(query.model, query.engine, query.hardware)
    unit, found = names.hardware.accelerator, []
    for bits in (16, 8):
        table = published_decode_table(names.model, unit, query.batch, query.context, bits)
        held = asdict(table)
        total = held.pop("total") | {"memory_access_bytes": table.total.memory_access_bytes}
        found.append({"bits": bits, **total, **{f"held_{k}": v for k, v in held.items()}})
    own = {"model": names.model.hf_id or names.model.name, "hardware": unit.name}
    return {"schema_version": SCHEMA_VERSION, "question": asdict(query) | own, "published": found}


def headlines(document: dict[str, Any]) -> Iterable[str]:
    """Yield the headlines of the screen: the step, its time, its bound, its memory and its calibration."""
    q, step, calibration = document["question"], document["step"], document["calibration"]
    decode = q["stage"] == "decode"
    prompts = "1 prompt" if q["batch"] == 1 else f"{q['batch']:,} prompts"
    each = f"one token for each of {q['batch']:,} sequences" if decode else prompts
    ranks = f"TP{q['tensor_parallel']} on {q['hardware']}"
    precision = f"{q['weight_dtype']} weights, {q['kv_dtype']} KV"
    images = f", {item_words(q['images'], q['resolution'])} among them" if q["images"] else ""
    yield f"{q['model']}, {precision}, {ranks}: {each}, {q['context']:,} tokens each{images}"
    least, device, engine = (time_text(step[k]) for k in ("roofline_s", "device_s", "engine_s"))
    rate = f"{step['tokens_per_s']:,.0f} {'tokens' if decode else 'prompt tokens'}/s"
    steps = "Step" if step["n_steps"] == 1 else f"{step['n_steps']:,} steps"
    yield f"{steps:<9} {engine} in the engine, {device} on the device, {least} at the roofline; {rate}"
    yield f"Bound     {bound_words(document['bound_s'])}"
    yield f"Memory    {memory_words(document['memory'])}"
    yield f"Known     device time {evidence_words(calibration)} ({calibration['bundle']})"


def item_words(count: int, size: str) -> str:
    """Return the items of a prompt in words, for example "2 images of 1024x768" or "1 piece of audio of 30s"."""
    kind = {"image": "image", "video": "video", "audio": "piece"}[parse_item(size).modality]
    return f"{counted(count, kind)} of {'audio of ' if kind == 'piece' else ''}{size}"


def bound_words(bound_s: dict[str, float]) -> str:
    """Return the shares of device time by bound, for example "memory bandwidth 61 %, ... of device time"."""
    total = sum(bound_s.values())
    return ", ".join(f"{BOUND_WORDS[k]} {percent(v / total)}" for k, v in bound_s.items()) + " of device time"


def memory_words(held: dict[str, Any]) -> str:
    """Return the memory of one accelerator in words, GB."""
    kinds = ("device", "weights", "activation", "runtime", "kv_batch", "kv_room")
    device, weights, activation, runtime, kv, left = (f"{held[f'{kind}_bytes'] / 1e9:.1f}" for kind in kinds)
    fits = "fits" if held["fits"] else "does NOT fit"
    parts = f"weights {weights}, activations {activation}, runtime {runtime}"
    return f"of {device} GB: {parts}; KV of this batch {kv} of {left}: {fits}"
