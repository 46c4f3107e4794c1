"""The rows of public measurements of networks: which network, job and execution each of them is.

What a row leaves out comes from the repository or the harness that published it; each such fact has its source here.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from catalogs.errors import InputError
from catalogs.networks.files import list_networks
from catalogs.networks.network import NeuralNetwork
from simulator.networks.execution import Execution, Parallelism
from simulator.networks.job import repeated_stages

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

#: Width and height by the names of resolutions in the rows.
RESOLUTIONS: Final = {"480p": (832, 480), "720p": (1280, 720)}

#: The same in Cosmos' own table, whose frames are 16:9.
COSMOS: Final = {"480p": (768, 432), "720p": (1280, 704)}

#: Inputs of one launch in MLPerf's offline scenario, by network and the start of the hardware's name ("": any other):
#: closed/NVIDIA/configs/NETWORK/Offline/__init__.py of inference results v4.1 (SDXL), v5.0 (ResNet-50, the same
#: boards), v4.0 (RetinaNet) and v3.0 (BERT). Where no configuration was read, 8.
OFFLINE_BATCH: Final = {
    "resnet50": {"L40S": 64, "L4": 32, "": 2048},
    "stable-diffusion-xl": {"L40S": 1, "": 32},
    "bert-99": {"L40S": 1024, "L4": 16, "": 1280},
    "bert-99.9": {"": 1024},
    "retinanet": {"L40S": 4, "L4": 2, "GH200": 56, "": 48},
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

#: Power limits of the MLPerf systems that state MaxQ (H200_SXM_141GBx8_MaxQ), in the same files; those of BERT are in
#: bert/Server/__init__.py of v4.1, and that of RetinaNet is the one of H100 (v4.0).
OFFLINE_MAX_Q_W: Final = {
    "resnet50": 350.0,
    "stable-diffusion-xl": 450.0,
    "bert-99": 400.0,
    "bert-99.9": 450.0,
    "retinanet": 350.0,
}

#: Windows of 128 voxels in each direction of a volume of KiTS19, which MLPerf's 3D-UNet segments one by one: the 16
#: of 43 volumes whose number a reproduction of the reference states (itu-rad/collocation-benchmark, the table of
#: matched cases).
KITS_WINDOWS: Final = (8, 16, 27, 32, 36, 36, 45, 48, 50, 64, 80, 96, 100, 108, 125, 144)

#: Attention of Segment Anything Fast by its experiment (experiments/run_experiments.py): Segment Anything writes it
#: out; "SDPA" calls torch's with the relative positions as a mask, and later ones have a kernel that computes these.
SAM_ATTENTION: Final = {"fp32": "eager", "bf16": "eager", "compile": "eager", "SDPA": "efficient"}

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


def network_name(row: Row) -> str:
    """Return the name in the catalog of a row's network; one that was traced at one image size may end in that size."""
    name = NETWORK.get(row["model"], row["model"].removeprefix("timm/"))
    side = re.match(r"(\d+)x\1$", row["input"])
    if row["model"].startswith("timm/") and side and f"{name}_{side[1]}" in list_networks():
        return f"{name}_{side[1]}"
    return name


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
    if row["model"].startswith("sam-"):
        backend = SAM_ATTENTION.get(row["input"].rpartition(" ")[2], "fa2")
    elif "xDiT" in source or "Wan2.1" in source:
        backend = "fa2"
    elif "CogVideo" in source or "sam2" in source:
        backend = "sdpa"
    elif "cosmos" in source and "B200" in row["hardware"]:
        backend = "cudnn"
    if unknown := next((method for method in NOT_PRICED if method in row["precision"]), None):
        raise InputError("no price for this method", unknown)
    # The source of Depth Anything names TensorRT for one of its boards, whose rows have it as their precision.
    stated = row["precision"] if row["model"].startswith("depth-anything") else source + row["precision"]
    mode = "tensorrt" if "TensorRT" in stated else "eager"
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
        autocast="autocast" in row["precision"],
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
