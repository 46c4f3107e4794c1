"""The catalogs as documents: models, hardware with prices, engines, workloads, prices and grids, in SI units."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from calibration.bundles.bundle import calibration_source
from catalogs.cli.describe import catalog_kind
from catalogs.economics.prices import Price, node_price
from catalogs.hardware.catalog import list_hardware, list_mig_profiles, parse_hardware, with_count
from catalogs.hardware.files import find_hardware_file, read_hardware_file
from catalogs.hardware.specs import Accelerator, Hardware
from catalogs.models.catalog import list_models, load_model
from catalogs.models.layers import LayerGroup
from catalogs.models.names import load_names
from catalogs.models.spec import Checkpoint, ModelSpec
from catalogs.networks.files import list_networks
from catalogs.networks.header import NetworkHeader, load_header
from catalogs.networks.names import load_names as load_network_names
from catalogs.workloads.workload import load_workload
from planner.agents.load import takes_agents
from planner.networks.job import STEPS, default_text, unit_of, usual_objective
from planner.web.documents.shapes import (
    Calibrated,
    CheckpointItem,
    EngineItem,
    HardwareItem,
    ModelDocument,
    ModelItem,
    NetworkItem,
    PriceItem,
    WorkloadDocument,
    WorkloadItem,
)

# ---- models


def models(search: str = "") -> list[ModelItem]:
    """Return the models whose names or architecture contain every word of `search`, in any case."""
    words = search.lower().split()
    return [item for text, item in _model_items() if all(word in text for word in words)]


@lru_cache(maxsize=1)
def _model_items() -> list[tuple[str, ModelItem]]:
    """Return each model with the text that a search reads."""
    found = []
    for name in list_models():
        item = _model_item(load_model(name))
        words = (item["name"], *item["other_names"], item["architecture"], item["attention"], item["weight_dtype"])
        found.append((" ".join(words).lower(), item))
    return found


def _model_item(model: ModelSpec) -> ModelItem:
    names = load_names().aliases.get(model.name, ())
    return {
        "name": model.name,
        "hf_id": model.hf_id,
        "other_names": list(names),
        "params": float(model.n_params),
        "active_params": float(model.n_active_params),
        "max_position_tokens": model.max_position_tokens,
        "layers": model.n_layers,
        "architecture": model.architecture,
        "attention": attention_words(model),
        "weight_dtype": model.weight_dtype,
        "weight_bytes": model.weight_bytes(model.weight_dtype),
        "checkpoints": [_checkpoint(found) for found in model.checkpoints],
        "source": model.source,
    }


def _checkpoint(found: Checkpoint) -> CheckpointItem:
    return {
        "repository": found.repository,
        "weight_dtype": found.format.dtype,
        "source": found.source,
        "as_of": found.as_of.isoformat(),
    }


def model_document(name: str) -> ModelDocument:
    """Return a model in full.

    Raises:
        InputError: The name is unknown.
    """
    model = load_model(name)
    groups = (*model.groups, *model.encoder_groups)
    return {
        **_model_item(model),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "published_params": model.published_params,
        "kv_bytes_per_token_bf16": model.kv_bytes_per_token("bf16"),
        "state_bytes_per_sequence": model.state_bytes_per_sequence,
        "encoder_layers": model.n_encoder_layers,
        "encoder_tokens": model.encoder_tokens,
        "layer_groups": [_group(group, encoder=i >= len(model.groups)) for i, group in enumerate(groups)],
        "notices": list(model.notices),
    }


def _group(group: LayerGroup, encoder: bool) -> dict[str, Any]:
    return {
        "layers": group.count,
        "kind": group_words(group, encoder),
        "encoder": encoder,
        "cross_attention": group.cross_attention,
        "mixer": _sizes(group.mixer),
        "feed_forward": _sizes(group.ffn),
    }


def _sizes(part: object) -> dict[str, Any] | None:
    """Return the sizes of a mixer or of a feed-forward block, which are dataclasses; None if a layer lacks it."""
    return asdict(part) if is_dataclass(part) and not isinstance(part, type) else None


def attention_words(model: ModelSpec) -> str:
    """Return the kinds of attention of a model in words, for example "GQA + sliding window of 1,024 tokens"."""
    kinds = (group.mixer.words for group in model.groups if group.mixer is not None)
    found = dict.fromkeys(word for kind in kinds for word in kind.split(" + "))
    if model.is_encoder_decoder:
        found["cross-attention"] = None
    return " + ".join(found)


def group_words(group: LayerGroup, encoder: bool = False) -> str:
    """Return what a layer consists of, for example "encoder: MHA, dense feed-forward block"."""
    return f"encoder: {group.words}" if encoder else group.words


# ---- networks


@lru_cache(maxsize=1)
def networks() -> list[NetworkItem]:
    """Return the networks that are not language models, with their sizes and their default jobs."""
    return [_network_item(load_header(name)) for name in list_networks()]


def _network_item(found: NetworkHeader) -> NetworkItem:
    names, sizes = load_network_names(), {size.name: size.default for size in found.sizes}
    return {
        "name": found.name,
        "hf_id": names.hf_id(found.name),
        "other_names": list(names.of(found.name)),
        "family": found.family,
        "params": float(found.parameters),
        "flops": float(found.default_job_flops),
        "sizes": [asdict(size) for size in found.sizes],
        "job": default_text(sizes),
        "steps": sizes.get(STEPS),
        "unit": unit_of(found.family),
        "slo": usual_objective(sizes),
        "source": found.source,
    }


# ---- hardware


def hardware() -> list[HardwareItem]:
    """Return every accelerator of the catalog with its node, its price and its calibration."""
    return [_hardware_item(parse_hardware(name)) for name in list_hardware()]


def hardware_document(text: str) -> dict[str, Any]:
    """Return the hardware that a text such as `h100x8` names, with the price of all of it.

    Raises:
        InputError: The name is unknown.
    """
    found = parse_hardware(text)
    whole = {"text": found.text, "accelerators": found.n_accelerators, "nodes": found.n_nodes}
    return {**_hardware_item(found), **whole, "price": price_item(node_price(found)), "notices": list(found.notices)}


def _hardware_item(found: Hardware) -> HardwareItem:
    unit, node = found.accelerator, found.node
    file, own = unit.name.partition(":")[0], unit.name == "local" or unit.is_slice
    most = node.max_accelerators
    calibrated, source = calibration_of(unit)
    return {
        "name": unit.name,
        "full_name": unit.full_name,
        "vendor": unit.full_name.partition(" ")[0],
        "kind": unit.kind,
        "architecture": unit.architecture,
        "memory_bytes": unit.memory_bytes,
        "memory_bytes_per_s": unit.memory_bandwidth_bytes_per_s,
        "peak_flops": dict(unit.peak_flops),
        "tdp_w": unit.tdp_w,
        "idle_w": unit.idle_w,
        "node_sizes": sorted({most, *(2**i for i in range(most.bit_length()) if 2**i <= most)}),
        "link": node.link_name,
        "link_bytes_per_s": node.link_bytes_per_s,
        "network_bytes_per_s": node.network_bytes_per_s,
        "mig_profiles": [] if own else list_mig_profiles(unit.name),
        "price": price_item(node_price(found if own else with_count(found, 1))),
        "node_price": price_item(node_price(found if own else with_count(found, most))),
        "calibrated": calibrated,
        "calibrated_on": source,
        "source": unit.source,
        "notes": read_hardware_file(file).notes if find_hardware_file(file) else "",
    }


def calibration_of(unit: Accelerator) -> tuple[Calibrated, str | None]:
    """Return whether an accelerator is calibrated, and the hardware on which its operators were measured."""
    source = calibration_source(unit)
    return "none" if source is None else "measured" if source == unit.name else "borrowed", source


def price_item(price: Price | None) -> PriceItem | None:
    """Return a price with its place, date and source; None if it is not known."""
    if price is None:
        return None
    return {
        "usd_per_hour": price.usd_per_hour,
        "instances": " + ".join(rented.words for rented in price.instances),
        "idle_accelerators": price.idle_accelerators,
        "cloud": price.cloud,
        "region": price.region,
        "place": " ".join(part for part in (price.cloud, price.region) if part),
        "date": price.as_of,
        "source": price.source,
        "note": price.note,
    }


# ---- engines, workloads, prices, grids


def engines() -> list[EngineItem]:
    """Return every engine of the catalog; those that are not supported state the reason in `source`."""
    return [
        {"name": row["name"], "version": row["version"], "supported": row["supported"], "source": row["source"]}
        for row in catalog_kind("engines").rows()
    ]


@lru_cache(maxsize=1)
def workloads() -> list[WorkloadItem]:
    """Return every workload of the catalog."""
    return [
        {
            "name": row["name"],
            "input_tokens_mean": row["input_mean_tokens"],
            "output_tokens_mean": row["output_mean_tokens"],
            "requests_per_s": row["requests_per_s"],
            "requests": row["requests"],
            "source": row["source"],
        }
        for row in catalog_kind("workloads").rows()
    ]


def workload_document(text: str) -> WorkloadDocument:
    """Return the workload of a name, a file or keys in braces.

    Raises:
        InputError: There is no such workload, or the file or a key breaks a rule.
    """
    found = load_workload(text)
    lengths = found.lengths()
    return {
        "name": found.name,
        "input_tokens_mean": lengths.input_tokens.mean,
        "output_tokens_mean": lengths.output_tokens.mean,
        "requests_per_s": found.requests_per_s,
        "requests": found.n_requests,
        "source": found.source,
        "lengths": lengths.words,
        "takes_agents": takes_agents(found),
        "notices": list(found.notices),
    }


#: Kinds of dated tables that are listed row by row.
TABLES: Final = ("prices", "grids", "regions")


def table_rows(kind: Literal["prices", "grids", "regions"]) -> list[dict[str, Any]]:
    """Return the rows of a dated table: prices of instances, grids with their carbon, regions of clouds."""
    return catalog_kind(kind).rows()
