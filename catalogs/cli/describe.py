"""Catalog entries as flat records with the unit in each key, for `catalog list` and `catalog show`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from catalogs.economics.electricity import list_grids, load_grid
from catalogs.economics.instances import COMMITMENTS, ON_DEMAND, SPOT, list_prices
from catalogs.economics.locations import SOURCES as CLOUD_REGION_SOURCES
from catalogs.economics.locations import list_cloud_regions, locate_grid
from catalogs.economics.prices import Price, Reading, RentalNeed, node_price, offers_by_region
from catalogs.engines.files import engine_file_names, load_engine, read_engine_file
from catalogs.errors import InputError, nearest_name
from catalogs.hardware.catalog import list_hardware, list_mig_profiles, parse_hardware
from catalogs.hardware.files import find_hardware_file, read_hardware_file
from catalogs.io.json_files import read_json
from catalogs.io.yaml_files import DATA, user_folder
from catalogs.models.catalog import list_models, load_model
from catalogs.networks.files import list_networks, load_network
from catalogs.networks.header import NetworkHeader, load_header
from catalogs.networks.names import load_names
from catalogs.networks.network import NeuralNetwork
from catalogs.units import GIB, GIGA, MIB, TERA

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CatalogKind:
    """One kind of catalog entry: `rows` returns every entry in brief, `show` one entry in full."""

    rows: Callable[[], list[Record]]
    show: Callable[[str], Record]


def catalog_kind(name: str) -> CatalogKind:
    """Return the kind of catalog entry called `name`, in the plural or singular.

    Raises:
        InputError: The kind is unknown; the message names the nearest one.
    """
    found = KINDS.get(name.lower()) or KINDS.get(f"{name.lower()}s")  # `show model NAME` reads better
    if found is None:
        raise InputError("unknown kind of catalog entry", name, nearest_name(name, KINDS) or ", ".join(KINDS))
    return found


def _brief(names: Iterable[str], show: Callable[[str], Record], *keys: str) -> list[Record]:
    """Return the given keys of every entry."""
    return [{key: record[key] for key in keys} for record in map(show, names)]


def _model_rows() -> list[Record]:
    return _brief(list_models(), _model, "name", "hf_id", "params_billion", "active_params_billion", "weight_dtype")


def _model(name: str) -> Record:
    m = load_model(name)
    return {
        "name": m.name,
        "hf_id": m.hf_id,
        "architecture": m.architecture,
        "params_billion": round(m.n_params / GIGA, 3),
        "active_params_billion": round(m.n_active_params / GIGA, 3),
        "published_params_billion": None if m.published_params is None else round(m.published_params / GIGA, 3),
        "weight_dtype": m.weight_dtype,
        "weights_gib": round(m.weight_bytes(m.weight_dtype) / GIB, 3),
        "kv_bytes_per_token_bf16": m.kv_bytes_per_token("bf16"),
        "state_bytes_per_sequence": m.state_bytes_per_sequence,
        "layers": m.n_layers,
        "hidden_size": m.hidden_size,
        "vocab_size": m.vocab_size,
        "max_position_tokens": m.max_position_tokens,
        "source": m.source,
    }


def _hardware_rows() -> list[Record]:
    keys = ("name", "memory_gib", "bandwidth_gb_per_s", "peak_tflops", "tdp_w", "max_per_node", "source")
    return _brief(list_hardware(), _hardware, *keys)


def _hardware(text: str) -> Record:
    h = parse_hardware(text)
    a, n = h.accelerator, h.node
    file = a.name.partition(":")[0]
    return {
        "name": a.name,
        "full_name": a.full_name,
        "kind": a.kind,
        "architecture": a.architecture,
        "memory_gib": round(a.memory_bytes / GIB, 2),
        "bandwidth_gb_per_s": round(a.memory_bandwidth_bytes_per_s / GIGA, 1),
        "peak_tflops": {d: round(v / TERA, 2) for d, v in a.peak_flops.items()},
        "tdp_w": a.tdp_w,
        "idle_w": a.idle_w,
        "accelerators": h.n_accelerators,
        "nodes": h.n_nodes,
        "max_per_node": n.max_accelerators,
        "link": n.link_name,
        "link_gb_per_s_each_way": n.link_bytes_per_s / GIGA,
        "network_gb_per_s_each_way": round(n.network_bytes_per_s / GIGA, 2),
        "host_idle_w": n.host_idle_w,
        "host_w_per_accelerator": n.host_w_per_accelerator,
        "mig_profiles": [] if a.name == "local" or a.is_slice else list_mig_profiles(a.name),
        "source": a.source,
        "notes": read_hardware_file(file).notes if find_hardware_file(file) else "",
        "notices": list(h.notices),
    }


def _engine_rows() -> list[Record]:
    def row(name: str) -> Record:
        keys = read_engine_file(name)
        source = keys.get("why") or f"{keys['source']} ({keys['as_of']})"
        return {"name": name, "version": keys.get("version", ""), "supported": "why" not in keys, "source": source}

    return [row(name) for name in engine_file_names()]


def _workload_rows() -> list[Record]:
    from catalogs.workloads.workload import list_workloads, load_workload

    def row(name: str) -> Record:
        w = load_workload(name)
        lengths = w.lengths().block()
        means = {f"{side}_mean_tokens": lengths[f"{side}_tokens"]["mean"] for side in ("input", "output")}
        return (
            {"name": w.name}
            | means
            | {"requests_per_s": w.requests_per_s, "requests": w.n_requests, "source": w.source}
        )

    return [row(name) for name in list_workloads()]


def _workload(name: str) -> Record:
    from catalogs.workloads.workload import load_workload

    w = load_workload(name)
    stats = {key: round(value, 2) for key, value in w.stats().items()}
    head = {"name": w.name, "requests": w.n_requests, "requests_per_s": w.requests_per_s, "closed_loop": w.closed_loop}
    images = {"images": w.media_words} if w.sends_media else {}
    return head | stats | images | {"source": w.source, "notices": list(w.notices)}


def _price_rows() -> list[Record]:
    left_out = {"area", "n_regions", "note"}
    return [{key: value for key, value in asdict(row).items() if key not in left_out} for row in list_prices()]


def _price(text: str) -> Record:
    """Return the price of hardware by every reading and in every region; null where the table has no price.

    The accelerators of a node share an instance, except in `separate_accelerators`, the price of as many accelerators
    that may each be in an instance of their own.
    """
    hardware = parse_hardware(text)
    found = {reading: node_price(hardware, reading) for reading in get_args(Reading)}
    found |= {c: node_price(hardware, commitment=c) for c in COMMITMENTS if c not in (ON_DEMAND, SPOT)}  # type: ignore[arg-type]
    found["separate_accelerators"] = node_price(hardware, together=1)
    need = RentalNeed.of(hardware)
    offers = [_offer(price) for commitment in COMMITMENTS for price in offers_by_region(need, commitment)]
    prices = {key: None if p is None else asdict(p) for key, p in found.items()}
    return {"hardware": hardware.text, **prices, "regions": offers}


def _offer(price: Price) -> Record:
    """Return the price in one region in brief, with the grid there."""
    located = locate_grid(price)
    return {
        "cloud": price.cloud,
        "region": price.region,
        "commitment": price.commitment,
        "usd_per_hour": round(price.usd_per_hour, 6),
        "instances": " + ".join(i.words for i in price.instances),
        "grid": located.grid.region if located.known else None,
        "gco2e_per_kwh": located.grid.gco2e_per_kwh if located.known else None,
        "as_of": price.as_of,
    }


def _region_rows() -> list[Record]:
    """Return the regions of the clouds with their grids."""
    return [
        {**asdict(r), "source": CLOUD_REGION_SOURCES[r.source], "gco2e_per_kwh": load_grid(r.grid).gco2e_per_kwh}
        for r in list_cloud_regions().values()
    ]


def _region(name: str) -> Record:
    """Return a region by its name, or by cloud and name, such as `aws us-east-1`.

    Raises:
        InputError: The region is unknown, or several clouds have one of this name.
    """
    named = {f"{row['cloud']} {row['region']}": row for row in _region_rows()}
    found = [row for key, row in named.items() if name.lower() in (key.lower(), str(row["region"]).lower())]
    if len(found) == 1:
        return found[0]
    rule = "several clouds have a region of this name" if found else "unknown region of a cloud"
    nearest = f"{found[0]['cloud']} {found[0]['region']}" if found else nearest_name(name, named)
    raise InputError(rule, name, nearest or next(iter(named)))


def _network_rows() -> list[Record]:
    return [_network_row(load_header(name)) for name in list_networks()]


def _network_row(header: NetworkHeader) -> Record:
    return {
        "name": header.name,
        "family": header.family,
        "params_billion": header.parameters / GIGA,
        "gflop_per_job": header.default_job_flops / GIGA,
        "other_names": ", ".join(load_names().of(header.name)),
        "source": header.source,
    }


def _network(name: str) -> Record:
    network = load_network(name)
    record = network_record(network)
    others = load_names().of(network.name)
    return {"name": record.pop("name"), "other_names": ", ".join(others), **record}


def network_record(network: NeuralNetwork) -> Record:
    """Return a network as a record: its sizes and its stages at the default job (in the dtype of the trace)."""
    stages = network.at()
    return {
        "name": network.name,
        "family": network.family,
        "params_billion": network.parameters / GIGA,
        "gflop_per_job": network.default_job_flops / GIGA,
        "source": network.source,
        "traced_with": network.traced_with,
        "sizes": [asdict(size) for size in network.sizes],
        "stages": [
            {
                "name": stage.name,
                "runs": stage.runs,
                "params_billion": stage.parameters / GIGA,
                "gflop_per_run": stage.flops / GIGA,
                "launches": sum(operator.times for operator in stage.operators),
                "peak_activation_mib": stage.peak_activation_bytes / MIB,
                "notices": "; ".join(traced.notices),
            }
            for stage, traced in zip(stages, network.stages, strict=True)
        ],
    }


def _calibration_folders() -> dict[str, Path]:
    """Return the shipped calibrations by hardware name; those of the user take precedence."""
    return {
        path.parent.name: path.parent
        for folder in (DATA / "calibrations", user_folder("calibrations"))
        for path in sorted(folder.glob("*/bundle.json"))
    }


def _calibration_rows() -> list[Record]:
    return _brief(_calibration_folders(), _calibration, "name", "engine", "engine_version", "families", "folder")


def _calibration(name: str) -> Record:
    folders = _calibration_folders()
    if name not in folders:
        raise InputError("no calibration of this hardware", name, nearest_name(name, folders))
    folder = folders[name]
    try:
        data = dict(read_json(folder / "bundle.json"))
    except (InputError, ValueError, TypeError):
        raise InputError("calibration bundle is not valid; remove its folder to ignore it", str(folder)) from None
    head = {key: data.get(key) for key in ("engine", "engine_version", "driver", "sources", "arrays_sha256")}
    place = "shipped" if folder.is_relative_to(DATA) else str(folder)
    return {"name": name, **head, "families": sorted(data.get("families", {})), "folder": place}


KINDS: dict[str, CatalogKind] = {
    "models": CatalogKind(_model_rows, _model),
    "networks": CatalogKind(_network_rows, _network),
    "hardware": CatalogKind(_hardware_rows, _hardware),
    "engines": CatalogKind(_engine_rows, lambda name: asdict(load_engine(name))),
    "workloads": CatalogKind(_workload_rows, _workload),
    "prices": CatalogKind(_price_rows, _price),
    "grids": CatalogKind(
        lambda: [asdict(load_grid(region)) for region in list_grids()], lambda region: asdict(load_grid(region))
    ),
    "regions": CatalogKind(_region_rows, _region),
    "calibrations": CatalogKind(_calibration_rows, _calibration),
}
