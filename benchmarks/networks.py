"""Predictions of networks that are not language models, compared with public measurements.

    python benchmarks/networks.py [--rows FILE] [--networks DIR] [--worst N] [--fit FILE]

FILE is `validation/networks/measured.csv` of the shared data (its README states the columns). Models whose name has an
even SHA-256 serve to fit the engine factors and the stated intervals (`--fit` writes both); the others are held out. A
row that cannot be predicted counts 100 % and is printed with its reason. Networks come from the catalog, or from
DIR/NAME.yaml.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from calibration.bundles.bundle import load_bundle
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import list_networks, load_network, read_network
from catalogs.networks.network import NeuralNetwork
from catalogs.ui.words import percent
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.factors import FILE, EngineFactors, IntervalClass, load_factors
from simulator.networks.job import JobPrice, price_job, repeated_stages

#: Classes of rows, with the target of the held-out median error.
TARGETS: Final = {
    "diffusion seconds": 0.12,
    "timm eager": 0.10,
    "timm compiled": 0.12,
    "MLPerf offline": 0.20,
    "speedup on 2, 4, 8 GPUs": 0.15,
    "peak memory": 0.15,
    "other": 0.0,
}

#: The class of the stated interval of each.
INTERVAL_CLASS: Final[dict[str, IntervalClass]] = {
    "diffusion seconds": "diffusion",
    "timm eager": "eager",
    "timm compiled": "compiled",
    "MLPerf offline": "tensorrt",
    "speedup on 2, 4, 8 GPUs": "speedup",
    "peak memory": "memory",
}

#: Hardware of the catalog by the start of the column `hardware`; the first match counts.
HARDWARE: Final = (
    ("RTX PRO 6000 Blackwell Max-Q", "rtxpro6000-maxq"),
    ("RTX PRO 6000", "rtxpro6000"),
    ("RTX 6000 Ada", "rtx6000ada"),
    ("RTX 5090", "rtx5090"),
    ("DGX Spark", "dgx-spark"),
    ("RTX 4090", "rtx4090"),
    ("GB200", "gb200"),
    ("B200", "b200"),
    ("GH200", "h100"),
    ("H200 NVL", "h200-nvl"),
    ("H200", "h200"),
    ("H100 PCIe", "h100-pcie"),
    ("H100_PCIe", "h100-pcie"),
    ("H100 (system ESC8000A", "h100-pcie"),  # ASUS ESC8000A and ESC4000A have slots for PCIe cards, none for SXM
    ("H100_ (system ESC4000A", "h100-pcie"),
    ("H100 NVL", "h100-nvl"),
    ("H100NVL", "h100-nvl"),
    ("H100_NVL", "h100-nvl"),
    ("H100", "h100"),
    ("H800/H100", "h100"),
    ("H20", "h20"),
    ("A800/A100", "a100-80gb"),
    ("A100 40GB", "a100-40gb"),
    ("A100", "a100-80gb"),
    ("L40S", "l40s"),
    ("L20", "l20"),
    ("L4 ", "l4"),
    ("T4", "t4"),
)

#: Network of the catalog by measured model, where the names differ.
NETWORK: Final = {
    "cosmos-predict2-2b-video2world NATTEN": "cosmos-predict2-2b-video2world",
    "bert-99": "bert-large",
    "bert-99.9": "bert-large",
    "3d-unet-99": "3d-unet",
    "retinanet": "retinanet-resnext50",
    "sam-vit_b": "samvit_base_patch16",
    "sam2.1-hiera-tiny": "sam2.1-tiny",
    "sam2.1-hiera-base_plus": "sam2.1-base-plus",
    "sam2-hiera-tiny": "sam2.1-tiny",  # SAM 2.1 has the encoder of SAM 2
    "sam2-hiera-small": "sam2.1-small",
    "sam2-hiera-base_plus": "sam2.1-base-plus",
    "sam2-hiera-large": "sam2.1-large",
    "consisid (cogvideox-5b)": "cogvideox-5b",
    "wan2.2-ti2v-5b t2v": "wan2.2-ti2v-5b",
    "wan2.2-ti2v-5b i2v": "wan2.2-ti2v-5b",
    "open-sora-2.0-11b": "open-sora-2.0",
}

DIFFUSION: Final = ("wan", "hunyuan", "cosmos", "cogvideo", "consisid", "open-sora")

#: The Wan repositories encode and decode video in fp32 (wan/modules/vae.py), with torch's default of tf32 convolutions.
WAN_STAGES: Final = (("decoder", "tf32"), ("video_encoder", "tf32"))

#: Ends of inputs that name an optimisation of Segment Anything Fast; each includes torch.compile.
COMPILED: Final = ("compile", "SDPA", "Triton", "NT")

NOT_PRICED: Final = ("int8 dynamic", "2:4 sparse")

#: Width and height by the names of resolutions in the rows. Cosmos' own table has 768 x 432 and 1280 x 704 at 16:9.
RESOLUTIONS: Final = {"480p": (832, 480), "720p": (1280, 720)}
COSMOS: Final = {"480p": (768, 432), "720p": (1280, 704)}

#: Inputs of one launch in MLPerf's offline scenario, by network and the start of the hardware's name ("": any other):
#: closed/NVIDIA/configs/NETWORK/Offline/__init__.py of inference results v4.1 (SDXL) and v5.0 (ResNet-50, the same
#: boards). That of BERT is the one of v3.0's base class. Where no configuration was read, 8.
OFFLINE_BATCH: Final = {
    "resnet50": {"L40S": 64, "L4": 32, "": 2048},
    "stable-diffusion-xl": {"L40S": 1, "": 32},
    "bert-99": {"": 1024},
    "bert-99.9": {"": 1024},
}

OFFLINE_PRECISION: Final = {
    "resnet50": {"": "int8"},
    "stable-diffusion-xl": {"L40S": "int8", "": "fp8"},
    "bert-99": {"": "int8"},
    "bert-99.9": {"": "fp8"},
    "retinanet": {"": "int8"},
    "3d-unet-99": {"": "int8"},
}

#: Tokens of MLPerf's BERT: SQuAD v1.1 in up to 384 tokens, of which 54 % are padding (openreview.net 3nzKUh9a4M), which
#: NVIDIA's harness removes.
SQUAD_TOKENS: Final = round(384 * (1 - 0.54))

#: Power limits of the MLPerf systems that state MaxQ (H200_SXM_141GBx8_MaxQ), in the same files.
OFFLINE_MAX_Q_W: Final = {"resnet50": 350.0, "stable-diffusion-xl": 450.0}

#: Share of the keys that Cosmos-Predict2 2B attends to with NATTEN: windows of its final configuration (COMB02, in
#: cosmos_transfer2/_src/predict2/configs/.../sparse_2B.py of Cosmos-Transfer2.5), layers by window of 44 x 80 tokens.
NATTEN_WINDOWS: Final = ((2, 4 * 16), (3, 12 * 16), (7, 12 * 24), (15, 20 * 40), (1, 28 * 56))

NATTEN_SHARE: Final = sum(layers * window for layers, window in NATTEN_WINDOWS) / (28 * 44 * 80)


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    values: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        """Return the text of a column."""
        return self.values[key]

    @property
    def held_out(self) -> bool:
        """Return whether the model must not serve to fit factors."""
        return int(hashlib.sha256(self["model"].encode()).hexdigest(), 16) % 2 == 1

    @property
    def kind(self) -> str:
        """Return the class of the row."""
        if self["metric"] == "peak memory":
            return "peak memory"
        if self["model"].startswith("timm/"):
            return "timm compiled" if "compile" in self["precision"] else "timm eager"
        if "Offline" in self["input"]:
            return "MLPerf offline"
        if self["model"].startswith(DIFFUSION) and self["metric"] == "latency":
            return "diffusion seconds"
        return "other"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction beside its measurement; `reason` says why there is none."""

    row: Row
    kind: str
    predicted: float | None
    measured: float
    reason: str = ""

    @property
    def error(self) -> float:
        """Return the relative error, 1 without a prediction."""
        return 1.0 if self.predicted is None else abs(self.predicted / self.measured - 1.0)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Row(values) for values in csv.DictReader(file)]
    except OSError:
        raise InputError("measurements cannot be read", str(path), hint="name the file with --rows") from None


class Predictor:
    """Predictions of rows under given factors."""

    def __init__(self, factors: EngineFactors, networks: Path | None) -> None:
        self.factors = factors
        self._networks = networks
        self._known: dict[tuple[object, ...], JobPrice] = {}

    def value(self, row: Row) -> float:
        """Return the predicted value of a row in its unit.

        Raises:
            InputError: The network or hardware is not in the catalog, or the metric is not one that is predicted.
        """
        if row["metric"] not in ("peak memory", "latency", "throughput", "p90 latency"):
            raise InputError("this metric is not predicted", row["metric"])
        if row["metric"] == "p90 latency" and "SQuAD" in row["input"]:
            raise InputError("the ninth decile of inputs of unknown lengths is not predicted", row["input"])
        network = self._network(network_name(row))
        job = job_of(row, network)
        price = self._price(network, row, job)
        if row["metric"] == "peak memory":
            return price.peak_memory_bytes / 1e9
        if row["metric"] == "latency" and row["unit"].startswith("s"):
            return price.seconds
        if "latency" in row["metric"] and row["unit"] == "ms":
            return price.seconds * 1e3
        jobs = job.get("batch", 1) * (int(row["n_gpus"]) if row.kind == "MLPerf offline" else 1)
        return jobs / price.seconds

    def _network(self, name: str) -> NeuralNetwork:
        if self._networks is not None and (path := self._networks / f"{name}.yaml").is_file():
            return _read(path)
        return load_network(name)

    def _price(self, network: NeuralNetwork, row: Row, job: dict[str, int]) -> JobPrice:
        execution = execution_of(row, network)
        name = next((name for start, name in HARDWARE if row["hardware"].startswith(start)), None)
        if name is None:
            raise InputError("no such hardware in the catalog", row["hardware"])
        key = (network.name, name, tuple(sorted(job.items())), execution)
        if key not in self._known:
            hardware = parse_hardware(name if execution.parallelism.ranks == 1 else f"{name}x{_node(name)}")
            bundle = load_bundle(hardware.accelerator)
            self._known[key] = price_job(network, bundle, hardware, execution, job, self.factors)
        return self._known[key]


def network_name(row: Row) -> str:
    """Return the name in the catalog of a row's network; one that was traced at one image size may end in that size."""
    name = NETWORK.get(row["model"], row["model"].removeprefix("timm/"))
    side = re.match(r"(\d+)x\1$", row["input"])
    if row["model"].startswith("timm/") and side and f"{name}_{side[1]}" in list_networks():
        return f"{name}_{side[1]}"
    return name


@lru_cache(maxsize=64)
def _read(path: Path) -> NeuralNetwork:
    return read_network(path)


def _node(name: str) -> int:
    return parse_hardware(name).node.max_accelerators


def job_of(row: Row, network: NeuralNetwork) -> dict[str, int]:
    """Return the sizes that a row states, as far as the network has them.

    Raises:
        InputError: The network was traced at another size.
    """
    text, found = row["input"], {}
    if pixels := re.search(r"(\d+)x(\d+)", text):
        found["width"], found["height"] = int(pixels[1]), int(pixels[2])
    for name, (width, height) in (COSMOS if "cosmos" in row["model"] else RESOLUTIONS).items():
        if name in text:
            found["width"], found["height"] = width, height
    if row["model"].startswith("wan2.2") and found.get("height") == 720:
        found["height"] = 704
    for name, pattern in (("frames", r"(?<!x)\b(\d+) frames"), ("steps", r"(\d+) steps")):
        if number := re.search(pattern, text):
            found[name] = int(number[1])
    if "CFG" in text:
        found["guidance"] = 2
    if "10 fps" in text:
        found["frames"] = 61
    if "SQuAD" in text:
        found["tokens"] = SQUAD_TOKENS
    found["batch"] = int(row["batch"]) if row["batch"].isdigit() else offline_batch(row)
    known = {size.name for size in network.sizes}
    if "height" not in known and row["model"].startswith("timm/") and str(found["height"]) not in row["model"]:
        return _traced_square(found, network)
    return {name: value for name, value in found.items() if name in known}


def offline_batch(row: Row) -> int:
    """Return the inputs of one launch that MLPerf's harness chooses; 1 outside of its offline scenario."""
    if row.kind != "MLPerf offline":
        return 1
    return by_hardware(OFFLINE_BATCH.get(row["model"], {"": 8}), row)


def by_hardware(known: Mapping[str, Value], row: Row) -> Value:
    """Return the first value whose key the hardware of a row starts with."""
    return next(value for start, value in known.items() if row["hardware"].startswith(start))


def _traced_square(found: dict[str, int], network: NeuralNetwork) -> dict[str, int]:
    """Return the batch of a network that has one image size, where that is the size of the row.

    Raises:
        InputError: It is another size.
    """
    shapes = [op.dims.get("input") for stage in network.stages for op, _ in stage.operators if op.kind == "convolution"]
    first = next((dims for dims in shapes if isinstance(dims, tuple)), ())
    if [int(extent.constant or 0) for extent in first] != [found["height"], found["width"]]:
        raise InputError("the network was traced at another size", f"{found['width']}x{found['height']}")
    return {"batch": found["batch"]}


def execution_of(row: Row, network: NeuralNetwork) -> Execution:
    """Return how a row was executed.

    Raises:
        InputError: A method has no price.
    """
    ranks = int(row["n_gpus"])
    if row["model"].startswith("timm/"):
        mode = "compiled" if "compile" in row["precision"] else "eager"
        amp = "amp" in row["precision"]
        return Execution(mode, "fp16" if amp else "bf16", autocast=amp, attention_backend="sdpa")  # type: ignore[arg-type]
    if row["source"].startswith("MLPerf"):
        limit = OFFLINE_MAX_Q_W.get(row["model"]) if "MaxQ" in row["hardware"] else None
        return Execution(
            "tensorrt", by_hardware(OFFLINE_PRECISION.get(row["model"], {"": "fp16"}), row), power_limit_w=limit
        )
    source = row["source"]
    backend = None
    if "xDiT" in source or "Wan2.1" in source:
        backend = "fa2"
    elif "CogVideo" in source or "sam2" in source:
        backend = "sdpa"
    elif "cosmos" in source and "B200" in row["hardware"]:
        backend = "cudnn"
    if unknown := next((method for method in NOT_PRICED if method in row["precision"]), None):
        raise InputError("no price for this method", unknown)
    mode = "tensorrt" if "TensorRT" in source + row["precision"] else "eager"
    if "all components compiled" in source or row["input"].endswith(COMPILED):
        mode = "compiled"
    precision = row["precision"] if row["precision"] in ("bf16", "fp16", "fp32") else "bf16"
    split = parallelism_of(row, network, ranks)
    # Wan 2.1 loads its checkpoint in fp32 and runs under autocast (wan/text2video.py). Its 14B offloads on one GPU, the
    # 5B of Wan 2.2 always, and converts its weights to bf16 (README, note of the table).
    five_billion = "Wan2.2" in source
    offload = five_billion or ("offload" in source and ranks == 1)
    return Execution(
        mode,  # type: ignore[arg-type]
        precision,
        attention_backend=backend,
        parallelism=split,
        offload=offload,
        weight_precision="fp32" if "Wan2.1" in source else None,
        stage_precision=WAN_STAGES if "Wan-Video" in source else (),
        attended=NATTEN_SHARE if "NATTEN" in row["model"] else 1.0,
    )


def parallelism_of(row: Row, network: NeuralNetwork, ranks: int) -> Parallelism:
    """Return the split of a row: as stated, or else Ulysses as far as the heads can be divided, or a ring."""
    if stated := re.search(r"ulysses(\d) ring(\d) cfg(\d)", row["input"]):
        return Parallelism(int(stated[1]), int(stated[2]), int(stated[3]))
    repeated = [stage for stage in network.stages if stage.name in repeated_stages(network)]
    heads = [op.dims["heads"] for stage in repeated for op, _ in stage.operators if op.kind == "attention"]
    counts = [int(h.constant or 1) for h in heads if not isinstance(h, tuple)]
    most = max(counts, default=1)
    ulysses = max(n for n in range(1, ranks + 1) if ranks % n == 0 and most % n == 0)
    if "Wan" in row["source"] and most % ranks:
        ulysses = 1  # Wan2.1 README: the ring strategy where the heads cannot be divided by the number of GPUs
    sharded = "Wan2.1" in row["source"] and ranks > 1
    return Parallelism(ulysses, ranks // ulysses, 1, sharded)


def outcomes(rows: Sequence[Row], predictor: Predictor) -> Iterator[Outcome]:
    """Yield the outcome of every row, and of the speedup of rows on several accelerators over one."""
    single: dict[tuple[str, ...], Outcome] = {}
    for row in sorted(rows, key=lambda row: int(row["n_gpus"])):
        measured = float(row["value"])
        try:
            found = Outcome(row, row.kind, predictor.value(row), measured)
        except InputError as error:
            found = Outcome(row, row.kind, None, measured, str(error))
        yield found
        if row.kind != "diffusion seconds":
            continue
        key = (row["model"], row["hardware"], re.sub(r", ulysses.*", "", row["input"]), row["source"])
        if row["n_gpus"] == "1":
            single[key] = found
        elif row["n_gpus"] in ("2", "4", "8") and (one := single.get(key)):
            ratio = one.measured / measured
            predicted = None
            if found.predicted and one.predicted:
                predicted = one.predicted / found.predicted
            yield Outcome(row, "speedup on 2, 4, 8 GPUs", predicted, ratio, found.reason)


def table(found: Sequence[Outcome], intervals: Mapping[IntervalClass, float]) -> str:
    """Return a Markdown table of errors by class, fitted and held out, with the coverage of the stated interval."""
    lines = [
        "| class | rows | models | predicted | median error | p90 | bias | 90 % interval | covered | target |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups = defaultdict(list)
    for outcome in found:
        groups[outcome.kind, outcome.row.held_out].append(outcome)
    for kind, target in TARGETS.items():
        factor = intervals.get(INTERVAL_CLASS[kind], 0.0) if kind in INTERVAL_CLASS else 0.0
        for held in (False, True):
            part = groups[kind, held]
            if not part:
                lines.append(f"| {kind} | {'held out' if held else 'fit'} | 0 | 0 of 0 | | | | | | |")
                continue
            logs = np.array([np.log(o.predicted / o.measured) for o in part if o.predicted])
            errors = [o.error for o in part]
            middle, high = float(np.median(errors)), float(np.quantile(errors, 0.9))
            bias = percent(float(np.expm1(np.median(logs))), 1, signed=True) if len(logs) else ""
            covered = percent(float(np.mean(np.abs(logs) <= np.log(factor)))) if len(logs) and factor else ""
            stated = f"x or / {factor:.2f}" if factor else ""
            models = len({o.row["model"] for o in part})
            lines.append(
                f"| {kind} | {'held out' if held else 'fit'} | {models} | {len(logs)} of {len(part)} "
                f"| {percent(middle, 1)} | {percent(high)} | {bias} | {stated} | {covered} "
                f"| {percent(target) if held and target else ''} |"
            )
    return "\n".join(lines)


def fitted_intervals(found: Sequence[Outcome]) -> dict[IntervalClass, float]:
    """Return the factor of the 90 % interval by class, from the rows with even names.

    Each model has the same weight, because a user asks about a new model, not about another row of one with many rows.
    A class with fewer than five predicted rows is left out.
    """
    factors: dict[IntervalClass, float] = {}
    for kind, name in INTERVAL_CLASS.items():
        own = [o for o in found if o.kind == kind and not o.row.held_out and o.predicted]
        if len(own) < 5:
            continue
        rows = Counter(o.row["model"] for o in own)
        ordered = sorted((abs(float(np.log(o.predicted / o.measured))), 1.0 / rows[o.row["model"]]) for o in own)  # type: ignore[operator]
        reached = np.cumsum([weight for _, weight in ordered]) / len(rows)
        size = ordered[int(np.searchsorted(reached, 0.9 - 1e-9))][0]
        factors[name] = ceil(100 * float(np.exp(size))) / 100
    return factors


#: Values that a fit tries for each factor; of a dict, for each of these modes.
GRID: Final[dict[str, tuple[float, ...]]] = {
    "convolution_share.eager": (0.6, 0.7, 0.8, 0.9, 1.0),
    "convolution_share.compiled": (0.6, 0.7, 0.8, 0.9, 1.0),
    "depthwise_share": (0.05, 0.075, 0.1, 0.15, 0.2),
    "transposed_share": (0.25, 0.5, 0.75, 1.0),
    "masked_attention_speed": (0.3, 0.4, 0.55, 0.7, 0.85, 1.0),
}


def fit(rows: Sequence[Row], networks: Path | None) -> EngineFactors:
    """Return the factors with the least mean absolute log error (at most 0.4 a row) on rows of even names.

    The factors of kernels are fitted to image networks on boards that their power does not limit.
    """
    own = [row for row in rows if not row.held_out and row.kind in ("timm eager", "timm compiled")]
    own = [row for row in own if "Max-Q" not in row["hardware"]]

    def loss(factors: EngineFactors) -> float:
        predictor = Predictor(factors, networks)
        found = [o for o in outcomes(own, predictor) if o.predicted]
        return float(np.mean([min(abs(float(np.log(o.predicted / o.measured))), 0.4) for o in found if o.predicted]))

    best = load_factors()
    least = loss(best)
    for name, values in (*GRID.items(), *GRID.items()):
        for value in values:
            tried = with_factor(best, name, value)
            if tried != best and (now := loss(tried)) < least - 1e-4:
                best, least = tried, now
        print(f"{name}: loss {least:.4f}", file=sys.stderr)
    return best


def with_factor(factors: EngineFactors, name: str, value: float) -> EngineFactors:
    """Return the factors with another value of one, which is named `factor` or `factor.mode`."""
    key, _, mode = name.partition(".")
    return factors.model_copy(update={key: {**getattr(factors, key), mode: value} if mode else value})


def written(factors: EngineFactors) -> str:
    """Return the file of factors, whose comments are those of the shipped file."""
    lines = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        key = line.partition(":")[0]
        value = factors.model_dump()[key] if key in EngineFactors.model_fields else None
        if isinstance(value, dict):
            line = f"{key}: {{{', '.join(f'{k}: {_number(v)}' for k, v in value.items())}}}"
        elif value is not None:
            line = f"{key}: {_number(value)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Return a number as YAML reads it, which needs a point before an exponent."""
    text = f"{value:.6g}"
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def main() -> int:
    """Print the table, the rows without a prediction by reason, and the worst rows."""
    shared = Path(os.environ.get("CAPACITY_PLANNER_SHARED", "../shared"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=shared / "validation/networks/measured.csv", metavar="FILE")
    parser.add_argument("--networks", type=Path, metavar="DIR", help="folder of further network files")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst predicted rows of a class")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="fit the engine factors and write them to FILE")
    given = parser.parse_args()
    try:
        rows = read_rows(given.rows)
        factors = fit(rows, given.networks) if given.fit else load_factors()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    found = list(outcomes(rows, Predictor(factors, given.networks)))
    if given.fit:
        factors = factors.model_copy(update={"interval_90": fitted_intervals(found)})
        given.fit.write_text(written(factors), encoding="utf-8")
    print(table(found, factors.interval_90))
    print("\nrows without a prediction, by reason:")
    for reason, count in Counter(o.reason.split(": got")[0] for o in found if o.predicted is None).most_common():
        print(f"  {count:4d} {reason}")
    for kind in TARGETS:
        part = sorted((o for o in found if o.kind == kind and o.predicted), key=lambda o: -o.error)
        for o in part[: given.worst]:
            names = ("model", "hardware", "n_gpus", "precision", "input", "batch")
            stated = " ".join(o.row[name] for name in names)
            print(f"  {kind}: {stated}: predicted {o.predicted:.4g}, measured {o.measured:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
