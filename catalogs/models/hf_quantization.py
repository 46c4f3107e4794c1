"""The weight format of a checkpoint, read from the quantization_config of its config.json."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from catalogs.errors import InputError, nearest_name
from catalogs.models.hf_reader import ConfigReader
from catalogs.models.layers import LayerGroup
from catalogs.models.mixers import Part
from catalogs.models.spec import PartFormat, WeightFormat
from catalogs.units import MXFP4_BYTES

#: Representative modules of each part; names differ by model family, so several are tried.
PROBES: Final[dict[Part, tuple[str, ...]]] = {
    "attention": ("self_attn.q_proj", "self_attn.q_a_proj", "mixer.q_proj"),
    "linear_attention": (
        *("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "linear_attn.out_proj", "mixer.in_proj"),
    ),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "feed_forward.up_proj", "mixer.up_proj"),
    "experts": (
        *("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "feed_forward.experts.0.up_proj"),
        *("mixer.experts.0.up_proj", "block_sparse_moe.experts.0.w1"),
    ),
    "shared_experts": (
        *("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj", "feed_forward.shared_expert.up_proj"),
        *("mixer.shared_experts.up_proj", "block_sparse_moe.shared_experts.up_proj"),
    ),
}

#: The modules of Gemma-4, whose dense block runs in parallel with its experts and is called mlp.
GEMMA4_PROBES: Final[dict[Part, tuple[str, ...]]] = {
    **PROBES,
    "experts": ("experts.0.up_proj", "experts.gate_up_proj"),
    "shared_experts": ("mlp.up_proj",),
}

#: The modules of Kimi Delta Attention are called as those of attention are.
KIMI_PROBES: Final[dict[Part, tuple[str, ...]]] = {**PROBES, "linear_attention": ("self_attn.q_proj",)}

#: The output projections of attention, which some quantisers treat otherwise than its other projections.
OUTPUT_PROBES: Final = ("self_attn.o_proj", "mixer.o_proj")

#: Served dtype by the names of `torch_dtype`; engines serve fp32 checkpoints in 16 bits by default.
DTYPES: Final = {
    **dict.fromkeys(("bfloat16", "bf16", "float32", "fp32", "float", "float64", "auto"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half"), "fp16"),
    "float8_e4m3fn": "fp8",
}

#: The modules of routed experts, without shared ones.
EXPERTS_ALONE: Final = r"re:.*\.experts\..*"

#: Names of `kv_cache_quant_algo`; only FP8 is a default of engines.
KV_ALGORITHMS: Final = ("FP8", "INT8", "NVFP4", "NONE")

#: The name that ModelOpt gives to a checkpoint with several storages, and the prefix of those of weights only.
MIXED: Final = "MIXED_PRECISION"
WEIGHTS_ONLY: Final = "W4A16"

PREFIXES: Final = ("model.layers", "language_model.model.layers", "model.language_model.layers", "backbone.layers")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InputError(f"quantization_config: not a regular expression ({error})", pattern) from error


class IgnoreList:
    """The modules that a quantiser left unquantised.

    A config lists them as names, dotted parts, globs or `re:` patterns.
    """

    def __init__(self, patterns: Iterable[object]) -> None:
        texts = [p for p in patterns if isinstance(p, str)]
        self._regexes = [_compiled(p[3:]) for p in texts if p.startswith("re:")]
        names = {p for p in texts if not p.startswith("re:")}
        self._regexes += [re.compile(fnmatch.translate(p.rstrip("*") + "*")) for p in names if "*" in p]
        self._names = {p for p in names if "*" not in p}

    def __bool__(self) -> bool:
        return bool(self._names or self._regexes)

    def holds(self, module: str) -> bool:
        """Return whether the list contains a module.

        A plain entry matches the module, one of its parents, or a sequence of its dotted parts ("gate" is not
        "gate_proj").
        """
        pieces = module.split(".")
        runs = (".".join(pieces[i:j]) for i in range(len(pieces)) for j in range(i + 1, len(pieces) + 1))
        return any(r in self._names for r in runs) or any(r.match(module) for r in self._regexes)

    def covers(self, probes: tuple[str, ...], layer: int) -> bool:
        """Return whether the list contains one of the `probes` in layer `layer`."""
        return any(self.holds(f"{prefix}.{layer}.{probe}") for prefix in PREFIXES for probe in probes)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Weights of one part of one layer that a quantiser treats alike; `probes` are representative modules of it."""

    part: Part
    layer: int
    probes: tuple[str, ...]
    params: int


def _pieces(layers: list[LayerGroup], hidden: int, probes: Mapping[Part, tuple[str, ...]]) -> list[_Piece]:
    """Return the weights of every layer by part; attention's output projection is a piece of its own.

    `layers` holds every layer in order, with count 1 each.
    """
    found: list[_Piece] = []
    for index, layer in enumerate(layers):
        for part, n in layer.part_params(hidden).items():
            output = layer.n_mixers * layer.mixer.output_size * hidden if part == "attention" and layer.mixer else 0
            found.append(_Piece(part, index, probes[part], n - output))
            found.append(_Piece(part, index, OUTPUT_PROBES, output))
    return [piece for piece in found if piece.params]


@dataclass(frozen=True, slots=True)
class _Storage:
    """A dtype with its bytes per weight (None: those of the dtype), and the modules stored so; None: all others."""

    dtype: str
    size: float | None
    modules: IgnoreList | None = None

    @property
    def key(self) -> tuple[str, float | None]:
        """Return what distinguishes one storage from another."""
        return self.dtype, self.size


def _weight_format(
    storages: list[_Storage], ignored: IgnoreList, pieces: list[_Piece], kv_dtype: str | None, block_size: int | None
) -> WeightFormat:
    """Return the format whose dtype most quantised weights have; the parts in another one are listed in it."""
    plain: Counter[Part] = Counter()
    quantised: dict[Part, Counter[tuple[str, float | None]]] = {}
    for piece in pieces:
        sizes = quantised.setdefault(piece.part, Counter())
        found = None if ignored.covers(piece.probes, piece.layer) else _storage_of(piece, storages)
        if found is None:
            plain[piece.part] += piece.params
        else:
            sizes[found] += piece.params
    total: Counter[tuple[str, float | None]] = sum(quantised.values(), Counter())
    main = max(total, key=lambda key: total[key], default=storages[0].key)
    shares, parts = [], []
    for part, sizes in quantised.items():
        if plain[part]:
            shares.append((part, plain[part] / (plain[part] + sizes.total())))
        if sizes and set(sizes) != {main}:
            dtype, size = max(sizes, key=lambda key: sizes[key])
            if len(sizes) > 1:
                size = sum(PartFormat(part, *key).stored_bytes * n for key, n in sizes.items()) / sizes.total()
            parts.append(PartFormat(part, dtype, size))
    return WeightFormat(main[0], main[1], tuple(shares), kv_dtype, block_size, tuple(parts))


def _storage_of(piece: _Piece, storages: list[_Storage]) -> tuple[str, float | None] | None:
    """Return the storage of a piece; None where no storage holds it, so that it is unquantised."""
    for storage in storages:
        if storage.modules is None or storage.modules.covers(piece.probes, piece.layer):
            return storage.key
    return None


def _mixed_storages(section: ConfigReader) -> list[_Storage]:
    """Return the storages of a checkpoint that has several; [] where the config states only one.

    ModelOpt lists the algorithm of each module (`quantized_layers`); compressed-tensors has a group for each storage.
    """
    if listed := section.section("quantized_layers"):
        named: dict[str, list[object]] = {}
        for module in listed.values:
            layer = listed.section(module)
            named.setdefault("" if layer is None else layer.text("quant_algo"), []).append(module)
        return [_Storage(*_known_format(section, name), IgnoreList(modules)) for name, modules in named.items()]
    if section.text("quant_algo") == MIXED:
        raise InputError(f"{section.where}: quantized_layers must list the storage of each layer", MIXED)
    groups = section.section("config_groups")
    found: list[_Storage] = []
    for name in groups.values if groups is not None else ():
        group = groups.section(name) if groups is not None else None
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            continue
        targets = group.items("targets") or []
        modules = None if "Linear" in targets else IgnoreList(targets)
        found.append(_Storage(*_bits_format(weights, weights.text("type", default="int"), ("num_bits",)), modules))
    found.sort(key=lambda storage: storage.modules is None)  # a class of modules yields to modules by name
    return found if len({storage.key for storage in found}) > 1 else []


def _known_format(section: ConfigReader, algorithm: str) -> tuple[str, float | None]:
    found = _algorithm_format(algorithm)
    if found is None:
        raise InputError(f"{section.where}: unknown quantisation", algorithm)
    return found


def _family_probes(config: ConfigReader) -> Mapping[Part, tuple[str, ...]]:
    """Return representative modules of each part in the names of a model family."""
    if config.get("linear_attn_config") is not None:
        return KIMI_PROBES
    return GEMMA4_PROBES if config.text("model_type") == "gemma4_text" else PROBES


def _quantisation(config: ConfigReader) -> ConfigReader | None:
    """Return the section that describes how a checkpoint is quantised, or None."""
    section = config.section("quantization_config") or config.section("compression_config")
    # modelopt's hf_quant_config.json, inlined
    return None if section is None else section.section("quantization") or section


def weight_notices(config: ConfigReader) -> tuple[str, ...]:
    """Return what is assumed about the storage of the weights of a checkpoint.

    Raises:
        InputError: The quantisation is not known.
    """
    section = _quantisation(config)
    listed = None if section is None else section.section("quantized_layers")
    if listed is None:
        return ()
    stated = {module: listed.section(module) for module in listed.values}
    algorithms = {module: layer.text("quant_algo") for module, layer in stated.items() if layer is not None}
    found = []
    if any(name.startswith(WEIGHTS_ONLY) for name in algorithms.values()):
        found.append(
            "layers in W4A16_NVFP4 have NVFP4 weights and 16-bit activations; their products are priced as NVFP4 "
            "products where the accelerator has FP4 arithmetic"
        )
    if "lm_head" in algorithms:
        found.append("the output projection is quantised in this checkpoint, and counted in 16 bits")
    return tuple(f"{config.where}: {text}" for text in found)


def _group_weights(config: ConfigReader) -> ConfigReader | None:
    """Return the `weights` entry of the first group of a compressed-tensors or modelopt config, or None."""
    groups = config.section("config_groups")
    first = groups.section(next(iter(groups.values))) if groups is not None and groups.values else None
    return None if first is None else first.section("weights")


def _group_size(config: ConfigReader) -> int:
    """Return the weights that share a scale; -1 in the config stands for a whole channel."""
    return 128 if config.get("group_size") == -1 else config.maybe_count("group_size") or 128


def _bits_format(config: ConfigReader, kind: str, bits_keys: tuple[str, ...]) -> tuple[str, float | None]:
    """Return the dtype and the bytes per weight of an 8- or 4-bit format.

    Groups of int4 add 2 bytes each for scale and zero.
    """
    bits, group = config.maybe_count(*bits_keys), _group_size(config)
    symmetric = config.flag("symmetric", "sym")
    if bits == 8:
        return ("fp8" if kind == "float" else "int8"), None
    if bits == 4 and kind == "float":
        return "fp4", (0.5 + 1 / 32 if group == 32 else 0.5 + 1 / 16)
    if bits == 4:
        return "int4", 0.5 + (2 if symmetric else 4) / group
    raise InputError(f"{config.where}: weights with this number of bits are not supported", bits, "4 or 8")


def _algorithm_format(name: str) -> tuple[str, float | None] | None:
    """Return the format of an algorithm that a quantiser names, or None."""
    upper = name.upper()
    if "MXFP8" in upper:
        return "fp8", 1.0 + 1 / 32
    if "MXFP4" in upper:
        return "fp4", 0.5 + 1 / 32
    if "NVFP4" in upper or upper == "FP4":
        return "fp4", 0.5 + 1 / 16
    return ("fp8", None) if "FP8" in upper else None


def _dtype_and_bytes(config: ConfigReader) -> tuple[str, float | None]:
    for key in ("quant_method", "quant_algo", "format"):
        if named := _algorithm_format(config.text(key)):
            return named
    method = config.text("quant_method").lower()
    weights = _group_weights(config)
    if weights is not None:
        return _bits_format(weights, weights.text("type", default="int"), ("num_bits",))
    if method in ("awq", "gptq", "auto-round", "autoround", "hqq"):
        return _bits_format(config, "int", ("bits", "w_bit", "nbits"))
    if method == "bitsandbytes" or config.get("load_in_4bit") is not None:
        return ("int4", None) if config.flag("load_in_4bit", "_load_in_4bit") else ("int8", None)
    algorithm = config.text("quant_algo")
    if "AWQ" in algorithm.upper() or "INT4" in algorithm.upper():
        return "int4", None
    raise InputError(f"{config.where}: unknown quantisation", method or algorithm or dict(config.values))


def _kv_dtype(section: ConfigReader) -> str | None:
    """Return the KV dtype that a checkpoint declares, or None.

    ModelOpt declares it as kv_cache_quant_algo, compressed-tensors as kv_cache_scheme.
    """
    scheme = section.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        reader = section.section("kv_cache_scheme")
        assert reader is not None
        return "fp8" if (reader.maybe_count("num_bits"), reader.text("type")) == (8, "float") else None
    name = section.text("kv_cache_scheme", "kv_cache_quant_algo", default="none").upper()
    if name not in KV_ALGORITHMS:
        raise InputError(f"{section.where}: unknown quantisation of the KV cache", name, ", ".join(KV_ALGORITHMS))
    return "fp8" if name == "FP8" else None


def _block_size(section: ConfigReader) -> int | None:
    """Return the rows of the blocks that share a scale, or None.

    They are in `weight_block_size`, or in the block_structure of compressed-tensors.
    """
    weights = _group_weights(section)
    shape = section.numbers("weight_block_size") or (weights.numbers("block_structure") if weights else None)
    if not shape:
        return None
    if shape[0] < 1:
        raise InputError(f"{section.where}: a block has at least one row", shape[0], "128")
    return shape[0]


def read_weight_format(config: ConfigReader, layers: list[LayerGroup], hidden: int) -> WeightFormat:
    """Return the storage of the weights of a checkpoint.

    Raises:
        InputError: The quantisation is not known.
    """
    section = _quantisation(config)
    if section is None:
        name = config.text("torch_dtype", "dtype", default="bfloat16").removeprefix("torch.")
        if name not in DTYPES:
            rule = f"{config.where}: unknown torch_dtype"
            raise InputError(rule, name, nearest_name(name, DTYPES, 0.7) or "bfloat16, float16 or float32")
        return WeightFormat(DTYPES[name])
    storages = _mixed_storages(section) or [_Storage(*_dtype_and_bytes(section))]
    if config.text("expert_dtype") == "fp4":  # DeepSeek-V4: MXFP4, whatever the quantization_config says of the rest
        storages = [_Storage("fp4", MXFP4_BYTES, IgnoreList((EXPERTS_ALONE,))), *storages]
    ignored: list[object] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules"):
        ignored += section.items(key) or []
    pieces = _pieces(layers, hidden, _family_probes(config))
    return _weight_format(storages, IgnoreList(ignored), pieces, _kv_dtype(section), _block_size(section))
