"""The addresses of the catalogs and of the calibrations."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Query
from typing_extensions import TypedDict

from planner.web.api.state import PREFIX, Owner, State
from planner.web.documents import shapes
from planner.web.questions import shown_names
from planner.web.uploads import with_names

router = APIRouter(prefix=PREFIX, tags=["catalogs"])

Item = TypeVar("Item")


class Items(TypedDict, Generic[Item]):
    """The entries of a catalog."""

    items: list[Item]


class Calibrations(Items[shapes.CalibrationItem]):
    """The calibration of every accelerator, the errors of whole runs, and how often predictions were right."""

    whole_runs: list[shapes.WholeRunItem]
    reliability: dict[str, Any]


@router.get("/models")
def list_models(
    search: str = Query("", max_length=200, description="Words that the name or the architecture contains."),
) -> Items[shapes.ModelItem]:
    """List the models of the catalog."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.models(search)}


@router.get("/networks")
def list_networks() -> Items[shapes.NetworkItem]:
    """List the networks that are not language models: encoders, diffusion, segmentation, detection."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.networks()}


@router.get("/models/{name:path}")
def show_model(name: str) -> shapes.ModelDocument:
    """Show one model in full, by its name in the catalog or its Hugging Face id."""
    from planner.web.documents import catalogs as documents
    from planner.web.documents.analysis import named_model

    return documents.model_document(named_model(name))


@router.get("/hardware")
def list_hardware() -> Items[shapes.HardwareItem]:
    """List the accelerators of the catalog with their nodes, dated prices and calibrations."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.hardware()}


@router.get("/hardware/{text}")
def show_hardware(text: str) -> dict[str, Any]:
    """Show hardware in full, with the price of all of it; the text is that of `--hw`, for example h100x8."""
    from planner.web.documents import catalogs as documents

    return documents.hardware_document(text)


@router.get("/engines")
def list_engines() -> Items[shapes.EngineItem]:
    """List the serving engines; those without support state the reason in `source`."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.engines()}


@router.get("/workloads")
def list_workloads() -> Items[shapes.WorkloadItem]:
    """List the workloads of the catalog with their mean lengths."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.workloads()}


@router.get("/workloads/{text:path}")
def show_workload(state: State, owner: Owner, text: str) -> shapes.WorkloadDocument:
    """Show one workload: by name, as an uploaded trace or workload file (upload:SHA256), or by its keys in braces."""
    from planner.web.documents import catalogs as documents

    local, files = state.uploads.local(text, owner)
    with shown_names(files):
        found = documents.workload_document(local)
    return with_names(found, files)  # type: ignore[no-any-return]


@router.get("/prices")
def list_prices() -> Items[dict[str, Any]]:
    """List the dated prices of cloud instances."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.table_rows("prices")}


@router.get("/grids")
def list_grids() -> Items[dict[str, Any]]:
    """List the electricity grids with their carbon intensity and industrial price."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.table_rows("grids")}


@router.get("/regions")
def list_regions() -> Items[dict[str, Any]]:
    """List the regions of clouds with the grids that supply them."""
    from planner.web.documents import catalogs as documents

    return {"items": documents.table_rows("regions")}


@router.get("/calibrations")
def list_calibrations() -> Calibrations:
    """List what is calibrated, and how well: operators by accelerator, and whole runs by engine."""
    from planner.web.documents.calibrations import calibrations

    found = calibrations()
    return Calibrations(items=found["items"], whole_runs=found["whole_runs"], reliability=found["reliability"])
