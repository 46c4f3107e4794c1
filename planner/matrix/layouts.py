"""The layout of a cell: the one that the matrix names, or the fewest accelerators on which the cell fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from calibration.serve.tiny_model import TINY_MODELS
from catalogs.deployments.network_deployment import is_network
from catalogs.deployments.resolution.parallelism import tensor_parallel_choices
from catalogs.deployments.schema import Deployment, deployment_of_keys
from catalogs.engines.files import engine_file_names, load_engine
from catalogs.engines.profile import EngineProfile
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware, with_count, with_nodes
from catalogs.hardware.specs import Hardware
from catalogs.io.input_files import exists, user_path
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec
from catalogs.workloads.workload import load_workload
from planner.matrix.cells import Cell
from planner.matrix.engine_batches import batch_keys, reserves_batch
from planner.matrix.matrix_file import AUTO, layout_keys, precision_keys
from simulator.cluster.compiled import DeploymentDoesNotFit, fit
from simulator.memory.plan import MemoryPlan

LayoutKeys = dict[str, int]


@dataclass(frozen=True, slots=True)
class CellNames:
    """The model, the engine and the hardware of a cell, looked up."""

    model: ModelSpec
    engine: EngineProfile
    hardware: Hardware

    @classmethod
    def of(cls, cell: Cell) -> CellNames:
        """Look up the names of a cell.

        Raises:
            InputError: A name is unknown.
        """
        hardware = parse_hardware(cell.hardware)
        return cls(load_model(cell.model), load_engine(cell.engine).on(hardware.accelerator.kind), hardware)


def check_names(cells: Sequence[Cell]) -> None:
    """Check the models, engines, hardware and workloads of cells.

    What is known but not simulated passes, such as an engine of the catalog without a model of its scheduler: its cells
    are rows with that verdict.

    Raises:
        InputError: A name is unknown (the error names the nearest), or a workload file breaks a rule.
    """
    checks: dict[str, Callable[[str], Any]] = {
        "model": _check_model,
        "engine": _check_engine,
        "hardware": parse_hardware,
        "workload": load_workload,
    }
    for axis, check in checks.items():
        for name in dict.fromkeys(getattr(cell, axis) for cell in cells):
            check(name)


def _check_model(name: str) -> None:
    if is_network(name):
        raise InputError("a matrix takes language models, and this network is not one", name)
    if name not in TINY_MODELS and not exists(user_path(name.strip())):
        load_model(name)


def _check_engine(name: str) -> None:
    if name.strip().lower() not in engine_file_names():
        load_engine(name)


def place(cell: Cell, names: CellNames, max_model_len: int) -> Deployment:
    """Return the deployment of a cell, on the hardware that its layout uses.

    Raises:
        DeploymentDoesNotFit: No layout of the cell holds its weights and caches.
        InputError: The combination is not simulated.
    """
    refused: InputError | None = None
    too_large: DeploymentDoesNotFit | None = None
    for layout in layouts_of(cell, names):
        try:
            written = deployment_of(cell, names, layout, max_model_len)
            check_fit(written, names.engine)
        except DeploymentDoesNotFit as error:
            too_large = error
        except InputError as error:
            refused = refused or error
        else:
            return written
    raise too_large or refused or InputError("no layout is possible", cell.layout)


def layouts_of(cell: Cell, names: CellNames) -> Iterator[LayoutKeys]:
    """Yield the layouts of a cell by their number of accelerators."""
    if cell.layout != AUTO:
        yield layout_keys(cell.layout)
        return
    hardware, engine = names.hardware, names.engine
    if hardware.accelerator.is_slice or hardware.accelerator.kind == "cpu":
        yield {}
        return
    if engine.stages_in_turn:
        most = min(hardware.n_accelerators, names.model.n_layers)
        yield from ({"pipeline_parallel": n} for n in range(1, most + 1))
        return
    per_node = hardware.accelerators_per_node
    yield from ({"tensor_parallel": n} for n in tensor_parallel_choices(names.model, per_node))
    for nodes in range(2, hardware.n_nodes + 1):
        yield {"tensor_parallel": per_node, "pipeline_parallel": nodes}


def deployment_of(cell: Cell, names: CellNames, layout: LayoutKeys, max_model_len: int) -> Deployment:
    """Return the deployment of a cell with a layout.

    Raises:
        InputError: The hardware is too small for the layout, the engine has no such batch, or keys contradict each
            other.
    """
    keys: dict[str, Any] = {
        "model": cell.model,
        "engine": cell.engine,
        "hardware": _used(names.hardware, layout).text,
        **layout,
        **precision_keys(cell.precision),
        **batch_keys(names.engine, cell.batch, max_model_len),
        **cell.keys,
    }
    return deployment_of_keys(keys, cell.name)


def _used(hardware: Hardware, layout: LayoutKeys) -> Hardware:
    """Return the part of the hardware that a layout uses: some of the accelerators of a node, or whole nodes."""
    needed = layout.get("tensor_parallel", 1) * layout.get("pipeline_parallel", 1)
    per_node = hardware.accelerators_per_node
    if hardware.text == "local" or hardware.accelerator.kind == "cpu" or needed > hardware.n_accelerators:
        return hardware
    if needed <= per_node:
        return with_count(with_nodes(hardware, 1), needed)
    return with_nodes(hardware, -(-needed // per_node))


def check_fit(written: Deployment, engine: EngineProfile) -> MemoryPlan:
    """Return the memory plan of a deployment that fits.

    Raises:
        DeploymentDoesNotFit: The weights and one longest sequence do not fit, or, for an engine that reserves the cache
            of a batch, the batch.
        InputError: The combination is not simulated.
    """
    resolved, memory = fit(written)
    limits = resolved.limits
    needed = limits.max_num_seqs * limits.max_model_len
    if reserves_batch(engine) and memory.max_concurrency_tokens < needed:
        rule = (
            f"{resolved.model.name} does not fit on {resolved.hardware.text} with a batch of {limits.max_num_seqs}: "
            f"{engine.name} reserves {needed:,} tokens of KV cache, and {memory.max_concurrency_tokens:,} fit"
        )
        fitting = memory.max_concurrency_tokens // limits.max_model_len
        raise DeploymentDoesNotFit(rule, None, f"batch {fitting}" if fitting else "more accelerators")
    return memory
