"""One cell simulated into its row, exactly as `simulate` simulates the deployment of the row."""

from __future__ import annotations

import json
from functools import lru_cache
from shlex import quote
from typing import Any, Final

from calibration.accuracy.stated_error import stated_errors_digest
from calibration.bundles.bundle import Bundle
from calibration.complexity.summary import complexity_of
from catalogs.deployments.schema import Deployment
from catalogs.economics.prices import RentalNeed
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.ui.installation import own_version
from catalogs.workloads.workload import Workload, in_closed_loop, load_workload
from planner.economics.money import Rates, money
from planner.matrix.cells import Cell
from planner.matrix.layouts import CellNames, place
from planner.matrix.row import CellCost, CellMemory, CellVersions, MatrixRow, Verdict
from planner.problem.reproduction import digest
from planner.problem.tariff import Tariff, table_price
from simulator.analysis.complexity import latency_records
from simulator.cli.outputs import document
from simulator.cluster.compiled import CompiledDeployment, CompiledFleet, DeploymentDoesNotFit, compile_fleet
from simulator.cluster.serving_options import serving_options
from simulator.cluster.simulate import simulate

#: Longest sequences are rounded up to a multiple of this, in tokens.
LENGTH_STEP: Final = 64


def evaluate(cell: Cell) -> MatrixRow:
    """Return the row of a cell; what is not possible becomes its verdict and rule."""
    try:
        names = CellNames.of(cell)
        workload = load_workload(cell.workload)
        longest = cell.max_model_len or _longest(cell, workload, names.model.longest_sequence_tokens)
        written = place(cell, names, longest)
        return _simulated(cell, written, workload)
    except DeploymentDoesNotFit as error:
        return refused(cell, "does not fit", error)
    except InputError as error:
        return refused(cell, "unsupported", error)


def refused(cell: Cell, verdict: Verdict, error: InputError) -> MatrixRow:
    """Return the row of a cell that has no figures, with the rule that it breaks."""
    rule = error.rule if error.value is None else f"{error.rule}: {error.value}"
    return MatrixRow(**identity(cell), origin="simulated", verdict=verdict, rule=rule, nearest=error.nearest)


def identity(cell: Cell) -> dict[str, Any]:
    """Return the axes of a cell as the keys of its row."""
    return {
        "cell": cell.name,
        "model": cell.model,
        "engine": cell.system,
        "hardware": cell.hardware,
        "workload": cell.workload,
        "batch": cell.batch,
        "precision": cell.precision,
        "layout": cell.layout,
        "load": cell.load,
        "requests": cell.requests,
        "seed": cell.seed,
    }


def simulated_document(
    written: Deployment, workload: Workload, cell: Cell, rate: float | None
) -> tuple[dict[str, Any], CompiledFleet]:
    """Return the document that `simulate --json` writes for a cell, and what was simulated."""
    fleet = compile_fleet(written)
    source = fleet.reads(workload)
    drawn = source.materialise(cell.seed, cell.requests, rate)
    run = simulate(fleet, drawn, serving_options(written, fleet))
    found = document(run, written, source)
    return found | {"complexity": complexity_of(latency_records(run)).block()}, fleet


def _simulated(cell: Cell, written: Deployment, workload: Workload) -> MatrixRow:
    loop = in_closed_loop(workload, cell.batch)
    found, fleet = simulated_document(written, loop, cell, None)
    rate: float | None = None
    if cell.open_share is not None:
        rate = cell.open_share * found["metrics"]["requests_per_s"]
        found, fleet = simulated_document(written, workload, cell, rate)
    return row_of(cell, written, found, fleet.deployments[0], rate)


def row_of(
    cell: Cell, written: Deployment, found: dict[str, Any], compiled: CompiledDeployment, rate: float | None
) -> MatrixRow:
    """Return the row of a simulated cell from the document of its run."""
    resolved, memory, metrics = compiled.resolved, compiled.memory, found["metrics"]
    calibration = dict(found["calibration"])
    versions = CellVersions(
        product=own_version(),
        engine=f"{resolved.engine.name} {resolved.engine.version}",
        calibration=digest(_fingerprint(compiled.bundle)),
        bundle=calibration["bundle"],
    )
    return MatrixRow(
        **identity(cell),
        origin="simulated",
        verdict="ok",
        used=resolved.hardware.text,
        n_accelerators=resolved.layout.accelerators,
        resolved_layout=resolved.layout.words,
        weight_dtype=resolved.weight_dtype,
        kv_dtype=resolved.kv_dtype,
        requests_per_s=rate,
        deployment=written.model_dump(exclude_unset=True, mode="json"),
        metrics=metrics,
        complexity=found["complexity"],
        memory=CellMemory(
            weights_bytes=memory.weights_bytes,
            activation_bytes=memory.activation_bytes,
            runtime_bytes=memory.non_torch_bytes,
            kv_bytes=memory.kv_bytes,
            kv_tokens=memory.max_concurrency_tokens,
            kv_peak_fraction=metrics["kv_peak_fraction"],
        ),
        cost=_cost(resolved.hardware.text, metrics),
        stated_error=calibration.pop("stated_error"),
        calibration=calibration,
        versions=versions,
        notices=found["notices"],
        command=command_of(cell, written, rate),
    )


def _fingerprint(bundle: Bundle) -> str:
    """Return text that identifies a calibration and the stated errors."""
    return f"{bundle.name} {sorted(bundle.provenance.items(), key=str)} {stated_errors_digest()}"


def command_of(cell: Cell, written: Deployment, rate: float | None) -> str:
    """Return the command that simulates the same cell; the deployment is passed as JSON."""
    text = json.dumps(written.model_dump(exclude_unset=True, mode="json"))
    load = f"--concurrency {cell.batch}" if rate is None else f"--rate {rate!r}"
    run = f"--requests {cell.requests} --seed {cell.seed} --json -"
    return f"echo {quote(text)} | simulate /dev/stdin --workload {quote(cell.workload)} {load} {run}"


def _longest(cell: Cell, workload: Workload, most: int) -> int:
    """Return the longest request of a cell, rounded up, and at most the longest sequence of the model."""
    inputs, outputs = workload.content.draw_lengths(cell.seed, cell.requests)
    longest = int((inputs + outputs).max())
    return min(most, -(-longest // LENGTH_STEP) * LENGTH_STEP)


@lru_cache(maxsize=256)
def _price(hardware: str) -> Any:
    return table_price(RentalNeed.of(parse_hardware(hardware)), Tariff())


def _cost(hardware: str, metrics: dict[str, Any]) -> CellCost:
    """Return the cost of a cell at the rates of its run."""
    output = metrics["output_tokens_per_s"]
    power_w = metrics["power"]["node_w_mean"] or 0.0
    found = money(Rates(output, output + metrics["input_tokens_per_s"], power_w), _price(hardware))
    return CellCost(
        usd_per_hour=found.usd_per_hour,
        usd_per_million_output_tokens=found.usd_per_million_output_tokens,
        usd_per_million_total_tokens=found.usd_per_million_total_tokens,
        price_as_of=found.price_as_of,
        price_source=found.price_source,
        idle_accelerators=found.idle_accelerators,
    )
