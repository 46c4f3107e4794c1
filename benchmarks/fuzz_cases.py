"""Draws random cases for the simulator: a deployment.yaml, a workload and run options from one seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from fuzz_schema import Domain, Drawer
from pydantic import BaseModel

import catalogs.workloads.arrivals  # noqa: F401 - makes its arrivals known
from catalogs.deployments.autoscaling import Autoscaling
from catalogs.deployments.faults import Fault, Retries
from catalogs.deployments.queueing import Queueing
from catalogs.deployments.resolve import BLOCK_SIZES
from catalogs.deployments.routing import ROUTER_OPTIONS
from catalogs.deployments.schema import ENCODE_KEYS, SHARED_KEYS, Deployment
from catalogs.engines.files import list_engines
from catalogs.hardware.catalog import list_hardware
from catalogs.models.catalog import list_models, load_model
from catalogs.units import DTYPE_BYTES
from catalogs.workloads.arrivals import Arrivals, Rateless
from catalogs.workloads.files import RECIPE_KEYS, WorkloadFile
from catalogs.workloads.lengths import LENGTHS
from catalogs.workloads.media_blocks import AudioClips, Images, Videos
from catalogs.workloads.service_classes import ServiceClass
from catalogs.workloads.sessions.turns import SharedPrefix, Turns
from catalogs.workloads.synthetic import Adapters

#: Most cases take one of these models: they are small enough to fit nearly anywhere, and each is of another kind.
USUAL_MODELS: Final = ("llama3.1-8b", "qwen2.5-0.5b", "qwen3-30b-a3b", "gpt-oss-20b", "gemma-3-12b", "qwen3.5-27b")
USUAL_HARDWARE: Final = ("h100", "a100-80gb", "l40s", "rtx4090", "h200")
MIG: Final = ("a100-80gb:2g.20gb", "h100:3g.40gb")
#: Keys of workload files that only the replay of a trace has.
OF_REPLAYS: Final = ("trace", "hash_block_tokens", "rate_scale", "tokenizer")


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of one run. `trace` is the text of the trace that `workload` names, empty if it names none."""

    seed: int
    deployment: dict[str, Any]
    workload: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    trace: str = ""
    focus: tuple[str, ...] = ()  # keys of the deployment that this case is about


def draw_case(seed: int, most_requests: int = 120) -> Case:
    """Return the case of a seed, which changes only if the catalogs or the schemas change.

    Most cases test a few keys, on hardware and with a load under which these keys matter. In all other cases every key
    is drawn at random.
    """
    rng = Random(seed)
    focused = rng.random() < 0.75
    wild = 0.02 if rng.random() < 0.15 else 0.0
    drawer = Drawer(rng, DOMAINS, 0.015 if focused else rng.choice((0.03, 0.08, 0.2)), wild)
    deployment = drawer.model(Deployment)
    focus = _focus(drawer, deployment) if focused else ()
    if rng.random() < 0.6 and "engine" not in deployment:
        deployment["engine"] = DOMAINS["engine"](drawer)
    text = "" if rng.random() < 0.85 else _trace(rng, min(60, most_requests))
    workload = _replay(drawer) if text else _recipe(drawer, deployment, most_requests)
    if focused and not text and rng.random() < 0.6:
        workload |= _pressure(drawer, most_requests)
    if rng.random() < 0.5:
        deployment |= _tight_cache(drawer, deployment, workload)
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        options["horizon_s"] = drawer.whole(1, 200) * rng.choice((0.01, 0.1, 1.0))
    return Case(seed, deployment, workload, options, text, focus)


#: Keys that only mixtures of experts have.
_OF_EXPERTS: Final = ("expert_parallel", "all2all_backend", "redundant_experts", "two_batch_overlap", "rank_dispatch")


def _focus(drawer: Drawer, deployment: dict[str, Any]) -> tuple[str, ...]:
    """Set a few keys that the case tests, on hardware that is large enough for them, and return their names."""
    rng, fields = drawer.rng, Deployment.model_fields
    model = rng.choice(USUAL_MODELS) if rng.random() < 0.7 else rng.choice(list_models())
    deployment |= {"model": model, "hardware": rng.choice(("h100x8", "a100-80gbx8", "l40sx8", "2*h200x8"))}
    if not load_model(model).is_moe:
        fields = {k: f for k, f in fields.items() if k not in _OF_EXPERTS}
    names = [name for name in fields if name not in (*deployment, "engine")]
    chosen = tuple(rng.sample(names, rng.randint(1, 3)))
    for name in chosen:
        deployment[name] = drawer.key(name, fields[name], name)
    if {"all2all_backend", "rank_dispatch", "redundant_experts", "two_batch_overlap"} & set(chosen):
        deployment |= {"expert_parallel": True, "data_parallel": rng.choice((2, 4))}
    if {"redundant_experts", "two_batch_overlap"} & set(chosen):
        deployment["all2all_backend"] = "deepep_low_latency"
    if "swap_space_gib" in chosen:
        deployment |= {"preemption": "swap", "engine": "vllm-v0"}
    if {"router", "autoscaling", "faults", "retries", "router_staleness_s"} & set(chosen) and "pools" not in chosen:
        deployment["replicas"] = rng.choice((2, 3, 4))
    return chosen


def _pressure(drawer: Drawer, most_requests: int) -> dict[str, Any]:
    """Return the keys of a load with more requests than the deployment serves at once."""
    rng = drawer.rng
    burst = {"poisson": {"requests_per_s": float(drawer.whole(20, 1000))}}
    return {
        "arrivals": rng.choice((burst, "all_at_once", {"closed_loop": {"concurrency": drawer.whole(8, 64)}})),
        "requests": rng.randint(most_requests // 3, most_requests),
        "output_tokens": {"uniform": {"low": 20, "high": rng.choice((60, 240))}},
    } | ({} if rng.random() < 0.7 else {"turns": {"per_session": rng.randint(2, 5), "think_time_s": 0.5}})


def _tight_cache(drawer: Drawer, deployment: dict[str, Any], workload: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a cache for one to four of the longest requests, so that requests wait or are preempted."""
    sides = [str(workload.get(key, 900)) for key in ("input_tokens", "output_tokens")]
    longest = sum(max([1, *map(int, re.findall(r"\b\d+\b", side))]) for side in sides)
    size = deployment.get("block_size") or 16
    needed = 1 + longest // size if isinstance(size, int) and size > 0 else 64
    shorter = 1 if drawer.rng.random() < 0.9 else 2
    tokens = needed * (size if isinstance(size, int) else 16) // shorter
    return {"kv_blocks": drawer.whole(needed, 4 * needed), "max_model_len": max(2, tokens)}


def _recipe(drawer: Drawer, deployment: dict[str, Any], most_requests: int) -> dict[str, Any]:
    found = drawer.model(WorkloadFile, "workload")
    found = {key: value for key, value in found.items() if key not in OF_REPLAYS}
    for key in ("arrivals", "input_tokens", "output_tokens"):
        found.setdefault(key, DOMAINS[key](drawer))
    found["requests"] = drawer.rng.choice((drawer.whole(1, most_requests), drawer.rng.randint(1, most_requests)))
    found.pop("duration_s", None)
    lora = deployment.get("lora")
    if isinstance(lora, dict) and drawer.rng.random() < 0.9:
        found["adapters"] = {"count": lora.get("adapters", 1), "skew": drawer.rng.choice((0.0, 1.0))}
    names = _models(deployment)
    if len(names) > 1 and drawer.rng.random() < 0.8:
        found["models"] = {name: drawer.whole(1, 5) for name in names}
    return found


def _models(deployment: dict[str, Any]) -> list[str]:
    pools = deployment.get("pools") or []
    own = [p.get("model", deployment["model"]) for p in pools if isinstance(p, dict)] if isinstance(pools, list) else []
    return list(dict.fromkeys(str(name) for name in own or [deployment["model"]]))


def _replay(drawer: Drawer) -> dict[str, Any]:
    found = drawer.model(WorkloadFile, "workload")
    return {key: value for key, value in found.items() if key not in RECIPE_KEYS} | {"trace": "trace.csv"}


def _trace(rng: Random, most: int) -> str:
    """Return a trace as CSV in the project's own column names."""
    further = [name for name in ("session", "priority", "deadline_s", "timeout_s") if rng.random() < 0.4]
    rows = [",".join(("arrival_s", "input_tokens", "output_tokens", *further))]
    now = 0.0
    for _ in range(rng.randint(1, most)):
        now += rng.expovariate(rng.choice((0.5, 5.0, 50.0)))
        cells = {"session": rng.randrange(5), "priority": rng.randrange(3)}
        seconds = {name: round(rng.expovariate(0.2) + 0.01, 3) for name in ("deadline_s", "timeout_s")}
        own = [str((cells | seconds)[name]) for name in further]
        rows.append(",".join((f"{now:.4f}", str(rng.randint(1, 900)), str(rng.randint(1, 90)), *own)))
    return "\n".join(rows) + "\n"


def _hardware(d: Drawer) -> str:
    rng = d.rng
    name = rng.choice(USUAL_HARDWARE) if rng.random() < 0.6 else rng.choice((*list_hardware(), *MIG))
    nodes = "" if rng.random() < 0.8 else f"{rng.choice((2, 3, 4))}*"
    return f"{nodes}{name}x{rng.choice((1, 1, 2, 4, 8))}"


def _router(d: Drawer) -> Any:
    name = d.rng.choice(list(ROUTER_OPTIONS))
    keys = d.model(ROUTER_OPTIONS[name], f"router.{name}", 0.5)
    return {name: keys} if keys or d.rng.random() < 0.3 else name


def _pool_keys(d: Drawer, path: str, chance: float) -> dict[str, Any]:
    keys = {k: f for k, f in Deployment.model_fields.items() if k not in SHARED_KEYS}
    return {k: d.key(k, f, f"{path}.{k}") for k, f in keys.items() if d.rng.random() < chance}


def _half(d: Drawer) -> dict[str, Any]:
    own = _pool_keys(d, "disaggregation", 0.06)
    return {key: value for key, value in own.items() if key not in ("model", "replicas")}


def _encode(d: Drawer) -> dict[str, Any]:
    own = _pool_keys(d, "encoder_pool", 0.2)
    return {key: value for key, value in own.items() if key in ENCODE_KEYS}


def _pools(d: Drawer) -> list[dict[str, Any]]:
    roles = d.rng.choice((("both",), ("both", "both"), ("prefill", "decode"), ("prefill", "decode", "decode")))
    named = [{} if role == "both" and d.rng.random() < 0.5 else {"role": role} for role in roles]
    return [_pool_keys(d, "pools", 0.06) | {"hardware": _hardware(d)} | role for role in named]


def _fault(d: Drawer) -> dict[str, Any]:
    if d.rng.random() < 0.1:
        return d.model(Fault, "faults", 0.3)
    kind = d.rng.choice(("crash", "slow", "link", "node"))
    found: dict[str, Any] = {"kind": kind} | ({"factor": 1.0 + d.whole(1, 9)} if kind in ("slow", "link") else {})
    if d.rng.random() < 0.4:
        return found | {"mtbf_s": float(d.whole(2, 500)), "mttr_s": float(d.whole(1, 60)), "seed": d.whole(0, 9)}
    found |= {"at_s": d.whole(0, 200) * 0.1, ("node" if kind == "node" else "replica"): d.whole(0, 3)}
    return found | ({"lasts_s": d.whole(1, 100) * 0.1} if d.rng.random() < 0.7 else {})


def _autoscaling(d: Drawer) -> dict[str, Any]:
    low = d.whole(0, 2)
    found = d.model(Autoscaling, "autoscaling", 0.3)
    return found | {"min_replicas": low, "max_replicas": max(1, low) + d.whole(0, 3)}


def _arrivals(d: Drawer) -> Any:
    """Return the block of a random arrival process, named as workload files name it."""
    kind = d.rng.choice(list(_leaves(Arrivals)))
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    keys = d.model(kind, f"arrivals.{name}", 0.6)
    if issubclass(kind, Rateless):
        keys.pop("requests_per_s", None)
    return {name: keys} if keys else name


def _leaves(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    below = sorted(cls.__subclasses__(), key=lambda c: c.__name__)
    for each in below:
        yield from _leaves(each)
    if not below:
        yield cls


def _lengths(longest: int) -> Domain:
    def draw(d: Drawer) -> Any:
        kind = d.rng.choice([name for name in LENGTHS if name != "quantiles_by_input"])
        most = max(2, int(longest * d.rng.choice((0.02, 0.2, 0.2, 1.0))))
        low, mean = d.rng.randint(1, most), d.rng.randint(1, most)
        if kind == "uniform":
            return {kind: {"low": low, "high": d.rng.randint(low, most)}}
        if kind == "lognormal":
            return {kind: {"mean": mean, "cv": d.rng.choice((0.1, 0.7, 1.5)), "high": most}}
        return {kind: {0: 1, 0.5: low, 1: most}} if kind == "quantiles" else {kind: low}

    return draw


def _rates(d: Drawer) -> dict[float, float]:
    times = [0.0, *sorted({float(d.whole(1, 40)) for _ in range(d.rng.randrange(3))})]
    return {at: float(d.whole(0, 30)) for at in times} | {0.0: float(d.whole(1, 30))}


def _spikes(d: Drawer) -> list[dict[str, float]]:
    return [{"at_s": float(d.whole(0, 50)), "lasts_s": float(d.whole(1, 20)), "factor": float(d.whole(1, 8))}]


def _speculative(d: Drawer) -> dict[str, Any]:
    method = d.rng.choice(("draft_model", "eagle", "eagle3", "mtp", "ngram"))
    k = d.whole(1, 6)
    falling = sorted((round(d.rng.random(), 3) for _ in range(k)), reverse=True)
    found = {"method": method, "num_speculative_tokens": k, "acceptance": d.rng.choice((0.0, 0.7, 1.0, falling))}
    if method in ("eagle", "eagle3", "draft_model"):
        found["model"] = d.rng.choice(USUAL_MODELS) if method == "draft_model" else "head"
    if d.rng.random() < 0.2:
        found |= {"acceptance": None, "acceptance_length": d.rng.choice((1.0, 1.5, 9.0))}
    if d.rng.random() < (0.5 if method == "ngram" else 0.05):
        found["draft_rate"] = d.rng.choice((0.01, 0.3, 1.0))
    return found | ({"topk": 2, "num_draft_tokens": k + 2} if d.rng.random() < 0.1 else {})


def _of(*choices: Any) -> Domain:
    return lambda d: d.rng.choice(choices)


def _whole(low: int, high: int, scale: float = 1) -> Domain:
    return lambda d: d.whole(low, high) * scale


def _list(draw: Domain, most: int) -> Domain:
    return lambda d: [draw(d) for _ in range(d.rng.randint(1, most))]


def _keys(model: type[BaseModel], path: str, chance: float = 0.4) -> Domain:
    return lambda d: d.model(model, path, chance)


DOMAINS: Final[dict[str, Domain]] = {
    "model": lambda d: d.rng.choice(USUAL_MODELS if d.rng.random() < 0.6 else list_models()),
    "engine": lambda d: d.rng.choice(list_engines(supported_only=d.rng.random() < 0.98)),
    "hardware": _hardware,
    "replicas": _of(1, 1, 2, 2, 3, 4),
    "tensor_parallel": _of(2, 2, 4, 8, 3, 16),
    "pipeline_parallel": _of(2, 3, 4),
    "data_parallel": _of(2, 4),
    "context_parallel": _of(2, 4),
    "decode_context_parallel": _of(2, 4),
    "redundant_experts": _of(8, 16, 32),
    "weight_dtype": _of(*DTYPE_BYTES),
    "kv_dtype": _of(*DTYPE_BYTES),
    "max_num_seqs": _whole(1, 256),
    "max_num_batched_tokens": _whole(8, 8192),
    "max_model_len": _whole(64, 8192),
    "block_size": _of(*BLOCK_SIZES, 3, 512),
    "kv_blocks": _whole(2, 2000),
    "gpu_memory_utilization": _of(0.3, 0.6, 0.8, 0.9, 1.0),
    "disaggregation.prefill": _half,
    "disaggregation.decode": _half,
    "encoder_pool.encode": _encode,
    "prefill_replicas": _of(1, 1, 2),
    "decode_replicas": _of(1, 1, 2),
    "max_local_prefill_tokens": _whole(1, 2000),
    "lora.max_rank": _of(8, 16, 64, 7),
    "host_gib": _whole(1, 2000, 0.01),
    "pools": _pools,
    "speculative": _speculative,
    "router": _router,
    "router_staleness_s": _whole(1, 2000, 0.01),
    "autoscaling": _autoscaling,
    "interval_s": _whole(1, 60),
    "target": _whole(1, 100, 0.05),
    "image_gb_per_s": _whole(1, 40, 0.5),
    "weights_gb_per_s": _whole(1, 40, 0.5),
    "queue": _keys(Queueing, "queue"),
    "faults": _list(_fault, 3),
    "retries": _keys(Retries, "retries"),
    "arrivals": _arrivals,
    "arrivals.piecewise.rates": _rates,
    "arrivals.piecewise.period_s": _whole(41, 100),
    "arrivals.spikes.every_s": _whole(10, 100),
    "arrivals.spikes.lasts_s": _whole(1, 9),
    "arrivals.diurnal.spikes": _spikes,
    "period_s": _whole(10, 100_000),
    "requests_per_s": _whole(1, 400, 0.2),
    "concurrency": _whole(1, 64),
    "input_tokens": _lengths(3000),
    "output_tokens": _lengths(240),
    "shared_prefix": _keys(SharedPrefix, "shared_prefix"),
    "shared_prefix.tokens": _whole(1, 2000),
    "turns": _keys(Turns, "turns"),
    "turns.per_session": _lengths(8),
    "images": _keys(Images, "images", 0.6),
    "images.per_request": _lengths(4),
    "images.resolution": _of("448x448", "1024x768", {"224x224": 1.0, "2000x1500": 2.0}, "10x5000", "large"),
    "images.distinct": _whole(1, 20),
    "videos": _keys(Videos, "videos", 0.3),
    "videos.per_request": _lengths(2),
    "videos.resolution": _of("640x360", {"224x224": 1.0, "1280x720": 2.0}),
    "videos.frames": _lengths(40),
    "audio": _keys(AudioClips, "audio", 0.3),
    "audio.per_request": _lengths(2),
    "audio.seconds": _lengths(60),
    "classes": _list(_keys(ServiceClass, "classes"), 3),
    "workload.adapters": _keys(Adapters, "adapters", 0.5),
    "adapters.count": _whole(1, 12),
    "models": lambda d: {d.rng.choice(list_models()): 1.0},
    "trace": _of("missing.csv"),
    "tokenizer": _of("missing.json"),
    "as_of": _of("2026-01"),
    "notes": _of("notes"),
    "source": _of("source"),
    "workload.name": _of("name"),
    "workload.scenario": _of("agentx", "none"),
}
