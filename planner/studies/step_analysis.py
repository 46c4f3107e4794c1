"""One engine step, taken apart without time passing: operators, what bounds them, memory, and how it all scales.

A decode step holds `batch` sequences with `context` tokens each, and generates one token for each. Prefill is all their
prompts, in as many steps as the engine cuts them into; figures are then of all these steps. One replica:
`tensor_parallel` accelerators, the figures of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from calibration.bundles.bundle import Bundle, load_bundle
from catalogs.deployments.resolve import CatalogLookup, resolve
from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.deployments.schema import Deployment
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.charts import time_text
from planner.studies.analyzed_steps import AnalyzedSteps, PromptLimits, decode_step, prefill_steps
from planner.studies.published_table import published_decode_table
from simulator.analysis.operators import (
    BOUND_WORDS,
    OperatorRow,
    operator_document,
    origin_shares,
    seconds_by_bound,
    together,
)
from simulator.costs.compile import compile_step_cost
from simulator.costs.step_cost import StepCost
from simulator.layers.encoder import cross_cache_bytes
from simulator.layers.shard import Shard
from simulator.layers.step import step_calls
from simulator.memory.plan import MemoryPlan, sequence_bytes, size_memory

SCHEMA_VERSION: Final = 1

STAGES: Final = ("decode", "prefill")

#: (bits, weight dtypes, KV dtypes) of the table of precisions; the first that device and engine have counts.
PRECISIONS: Final = (
    (16, ("bf16", "fp16"), ("bf16", "fp16")),
    (8, ("fp8", "int8"), ("fp8", "bf16", "fp16")),
    (4, ("fp4", "int4"), ("fp8", "bf16", "fp16")),
)

#: Sequences and tokens of prompts beyond which a question is a slip of the keyboard.
MOST_SEQUENCES: Final = 65_536

MOST_PROMPT_TOKENS: Final = 2**24

#: Multiples of the batch and of the context in the table of scaling.
STEPS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Question:
    """What to take apart. None: the model's own weight dtype, the engine's KV dtype, all accelerators named."""

    model: str
    hardware: str
    batch: int
    context: int
    stage: str = "decode"
    engine: str = "vllm"
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    tensor_parallel: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise InputError("a stage is decode or prefill", self.stage, nearest_name(self.stage, STAGES) or STAGES[0])
        for name in ("batch", "context"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is a whole number of at least 1", getattr(self, name), "1")
        if self.batch > MOST_SEQUENCES:
            raise InputError(f"a batch is at most {MOST_SEQUENCES} sequences", self.batch, str(MOST_SEQUENCES))
        if self.stage == "prefill" and self.batch * self.context > MOST_PROMPT_TOKENS:
            most = max(MOST_PROMPT_TOKENS // self.context, 1)
            rule = f"prompts are at most {MOST_PROMPT_TOKENS} tokens together"
            raise InputError(rule, f"{self.batch} x {self.context}", f"--batch {most}")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of the step, or of all steps of the prompts: no execution beats the roofline; the device by the
    calibration; the engine with its host."""

    roofline_s: float
    device_s: float
    engine_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on one accelerator. activation_bytes: what the engine sets aside at its own limits."""

    device_bytes: float
    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    kv_batch_bytes: float  # of this batch at this context
    kv_room_bytes: float  # what is left for KV

    @property
    def fits(self) -> bool:
        return self.kv_batch_bytes <= self.kv_room_bytes


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """The same step with other weights and KV cache."""

    bits: int
    weight_dtype: str
    kv_dtype: str
    time: StepTime
    held: Held
    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """The same with another batch or context."""

    quantity: str  # "batch" | "context"
    value: int
    time: StepTime
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """See the module."""

    question: Question
    resolved: ResolvedDeployment
    steps: AnalyzedSteps
    rows: list[OperatorRow]
    time: StepTime
    held: Held
    precisions: list[PrecisionRow]
    scaling: list[ScalingRow]
    bundle: str
    notices: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.steps.tokens / self.time.engine_s


def analyze(question: Question) -> Analysis:
    """Take a step apart. Raises InputError for bad names, or a context beyond the model's positions."""
    bench = _Bench.of(question)
    longest = bench.resolved.model.max_position_tokens
    if question.context > longest:
        raise InputError(
            f"the context is beyond the {longest} positions of {bench.resolved.model.name}",
            question.context,
            str(longest),
        )
    steps = bench.steps(question)
    return Analysis(
        question,
        bench.resolved,
        steps,
        sorted(bench.rows(steps), key=lambda r: -r.seconds),
        bench.time(steps),
        bench.held(question),
        [row for bits, weights, caches in PRECISIONS if (row := _precision(question, bits, weights, caches))],
        [*_scaled(bench, question, "batch", None), *_scaled(bench, question, "context", longest)],
        bench.bundle.name,
        tuple(dict.fromkeys(bench.notices(question))),
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """One resolved replica, priced."""

    resolved: ResolvedDeployment
    memory: MemoryPlan
    bundle: Bundle
    cost: StepCost

    @classmethod
    def of(cls, question: Question) -> _Bench:
        resolved = resolve(_deployment(question))
        bundle = load_bundle(resolved.hardware.accelerator)
        return cls(resolved, size_memory(resolved), bundle, compile_step_cost(resolved, bundle))

    def steps(self, question: Question) -> AnalyzedSteps:
        """By the engine's own limits."""
        if question.stage == "decode":
            return decode_step(question.batch, question.context)
        limits = self.resolved.limits
        cut = PromptLimits(limits.max_num_batched_tokens, limits.max_num_seqs, self.resolved.engine.chunked_prefill)
        return prefill_steps(question.batch, question.context, cut)

    def rows(self, steps: AnalyzedSteps) -> list[OperatorRow]:
        return steps.operators(self.cost.tables)

    def time(self, steps: AnalyzedSteps) -> StepTime:
        rows, engine_s = self.rows(steps), steps.seconds(self.cost.cycle_s)
        return StepTime(sum(r.roofline_s for r in rows), sum(r.seconds for r in rows), engine_s)

    def held(self, question: Question) -> Held:
        memory, shard = self.memory, Shard.of(self.resolved)
        return Held(
            self.resolved.hardware.accelerator.memory_bytes,
            memory.budget_bytes,
            memory.weights_bytes,
            memory.activation_bytes,
            memory.non_torch_bytes,
            question.batch * (sequence_bytes(shard, question.context) + cross_cache_bytes(shard)),
            memory.kv_bytes,
        )

    def notices(self, question: Question) -> list[str]:
        found = [*self.resolved.notices, *self.bundle.notices]
        steps, lines = self.steps(question), step_calls(Shard.of(self.resolved), self.steps(question).shapes[0])
        found += self.bundle.notices_for([line.op for line in lines])
        if steps.n > 1:
            budget = self.resolved.limits.max_num_batched_tokens
            cut_up = f"{steps.n:,} steps of up to {budget:,} tokens (max_num_batched_tokens)"
            found.append(f"the engine runs these prompts in {cut_up}; times, operators and bytes are of all of them")
        if self.memory.free_bytes <= 0:
            found.append(f"does not fit: {self.memory.why}")
        elif not self.held(question).fits:
            found.append("the KV cache of this batch does not fit: the engine would run fewer sequences at once")
        return found


def _deployment(question: Question) -> Deployment:
    hardware = parse_hardware(question.hardware)
    every = 1 if hardware.accelerator.is_slice else hardware.accelerators_per_node
    return Deployment(
        model=question.model,
        engine=question.engine,
        hardware=question.hardware,
        tensor_parallel=question.tensor_parallel or every,
        weight_dtype=question.weight_dtype,
        kv_dtype=question.kv_dtype,
    )


def _precision(question: Question, bits: int, weights: tuple[str, ...], caches: tuple[str, ...]) -> PrecisionRow | None:
    """None where the model has no such weights on this device."""
    names = CatalogLookup.of(question.model, question.engine, question.hardware)
    peaks = names.hardware.accelerator.peak_flops
    weight = next((w for w in weights if w in peaks), weights[-1])
    cache = next((c for c in caches if c in names.engine.kv_dtypes and (c in peaks or c == "fp8")), None)
    try:
        bench = _Bench.of(replace(question, weight_dtype=weight, kv_dtype=cache))
    except InputError:
        return None
    steps, r = bench.steps(question), bench.resolved
    rows = bench.rows(steps)
    work, moved = sum(x.flops for x in rows), sum(x.bytes for x in rows if x.kind != "collective")
    return PrecisionRow(bits, r.weight_dtype, r.kv_dtype, bench.time(steps), bench.held(question), work, moved)


def _scaled(bench: _Bench, question: Question, quantity: str, most: int | None) -> list[ScalingRow]:
    asked = getattr(question, quantity)
    values = sorted({max(1, round(asked * step)) for step in STEPS})
    found = []
    for value in values:
        if most is None or value <= most:
            try:
                steps = bench.steps(replace(question, **{quantity: value}))
            except InputError:  # larger than can be asked
                continue
            time = bench.time(steps)
            found.append(ScalingRow(quantity, value, time, steps.tokens / time.engine_s))
    return found


def document(analysis: Analysis) -> dict[str, Any]:
    """`plan analyze --json`: SI units, named in the keys."""
    a, question = analysis, analysis.question
    return {
        "schema_version": SCHEMA_VERSION,
        "question": asdict(question)
        | {
            "model": a.resolved.model.hf_id or a.resolved.model.name,
            "hardware": a.resolved.hardware.text,
            "weight_dtype": a.resolved.weight_dtype,
            "kv_dtype": a.resolved.kv_dtype,
            "tensor_parallel": a.resolved.layout.tensor_parallel,
        },
        "step": asdict(a.time) | {"tokens_per_s": a.tokens_per_s, "n_steps": a.steps.n},
        "bound_s": seconds_by_bound(a.rows),
        "operators": [operator_document(row) for row in together(a.rows)],
        "memory": asdict(a.held) | {"fits": a.held.fits},
        "precisions": [asdict(p) for p in a.precisions],
        "scaling": [asdict(s) for s in a.scaling],
        "calibration": {"bundle": a.bundle} | origin_shares(a.rows),
        "notices": list(a.notices),
    }


def published_document(question: Question) -> dict[str, Any]:
    """One decode step of a dense model in the conventions of a published table (see simulator.roofline_view), 16 and
    8 bit. Raises InputError for a prompt, and for models the conventions do not cover."""
    if question.stage != "decode":
        raise InputError("the published table is of a decode step", question.stage, "decode")
    names = CatalogLookup.of(question.model, question.engine, question.hardware)
    unit, found = names.hardware.accelerator, []
    for bits in (16, 8):
        table = published_decode_table(names.model, unit, question.batch, question.context, bits)
        total = asdict(table.total) | {"memory_access_bytes": table.total.memory_access_bytes}
        held = {k: v for k, v in asdict(table).items() if k != "total"}
        found.append({"bits": bits, **total, **{f"held_{k}": v for k, v in held.items()}})
    asked = {"model": names.model.hf_id or names.model.name, "hardware": unit.name}
    return {"schema_version": SCHEMA_VERSION, "question": asdict(question) | asked, "published": found}


def headlines(document: dict[str, Any]) -> Iterable[str]:
    """What the step is, how long it takes, and what it waits for."""
    q, step, calibration = document["question"], document["step"], document["calibration"]
    tokens = f"{q['context']:,} tokens"
    decode = q["stage"] == "decode"
    prompts = "1 prompt" if q["batch"] == 1 else f"{q['batch']:,} prompts"
    each = f"one token for each of {q['batch']:,} sequences" if decode else prompts
    ranks = f"TP{q['tensor_parallel']} on {q['hardware']}"
    yield f"{q['model']}, {q['weight_dtype']} weights, {q['kv_dtype']} KV, {ranks}: {each}, {tokens} each"
    least, device, engine = (time_text(step[k]) for k in ("roofline_s", "device_s", "engine_s"))
    rate = f"{step['tokens_per_s']:,.0f} {'tokens' if decode else 'prompt tokens'}/s"
    steps = "Step" if step["n_steps"] == 1 else f"{step['n_steps']:,} steps"
    yield f"{steps:<9} {engine} in the engine, {device} on the device, {least} at the roofline; {rate}"
    yield f"Bound     {bound_words(document['bound_s'])}"
    yield f"Memory    {memory_words(document['memory'])}"
    parts = [f"{calibration[f'{k}_fraction']:.0%} {k}" for k in ("measured", "interpolated", "roofline")]
    yield f"Known     device time {', '.join(parts)} only ({calibration['bundle']})"


def bound_words(bound_s: dict[str, float]) -> str:
    """ "memory bandwidth 61 % of device time, ..." """
    total = sum(bound_s.values())
    said = [f"{BOUND_WORDS[k]} {v / total:.0%}" for k, v in bound_s.items()]
    return ", ".join(said) + " of device time"


def memory_words(held: dict[str, Any]) -> str:
    """One accelerator's bytes, GB."""
    gb = {k: f"{held[f'{k}_bytes'] / 1e9:.1f}" for k in ("device", "weights", "activation", "runtime", "kv_batch")}
    room = f"{held['kv_room_bytes'] / 1e9:.1f}"
    fits = "fits" if held["fits"] else "does NOT fit"
    return (
        f"of {gb['device']} GB: weights {gb['weights']}, activations {gb['activation']}, runtime {gb['runtime']}; "
        f"KV of this batch {gb['kv_batch']} of {room}: {fits}"
    )
