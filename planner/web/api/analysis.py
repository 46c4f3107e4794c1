"""The addresses of what is computed about one engine step: its analysis, its graph of operators, and its memory."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from planner.studies.step_analysis import MOST_SEQUENCES, STEP_HELP, StepQuery
from planner.web.api.state import PREFIX
from planner.web.documents.analysis import analyze_document, named_model
from planner.web.documents.graph import Graph, graph_document
from planner.web.documents.memory import memory_document

router = APIRouter(prefix=PREFIX, tags=["steps"])


def step_query(
    model: Annotated[str, Query(max_length=200, description=STEP_HELP["model"])],
    hardware: Annotated[str, Query(max_length=100, description=STEP_HELP["hardware"])],
    batch: Annotated[int, Query(ge=1, le=MOST_SEQUENCES, description=STEP_HELP["batch"])] = 1,
    context: Annotated[int, Query(ge=1, description=STEP_HELP["context"])] = 1024,
    stage: Annotated[str, Query(max_length=20, description=STEP_HELP["stage"])] = "decode",
    engine: Annotated[str, Query(max_length=100, description=STEP_HELP["engine"])] = "vllm",
    weight_dtype: Annotated[str | None, Query(max_length=20, description=STEP_HELP["weight_dtype"])] = None,
    kv_dtype: Annotated[str | None, Query(max_length=20, description=STEP_HELP["kv_dtype"])] = None,
    tensor_parallel: Annotated[int | None, Query(ge=1, le=1024, description=STEP_HELP["tensor_parallel"])] = None,
) -> StepQuery:
    """Return the step that a client names."""
    name = named_model(model)
    return StepQuery(
        name, hardware, batch, context, stage, engine, weight_dtype or None, kv_dtype or None, tensor_parallel
    )


Step = Annotated[StepQuery, Depends(step_query)]


@router.get("/analyze")
def analyze(step: Step) -> dict[str, Any]:
    """Analyse one engine step: its operators, bounds, memory, precisions and scaling.

    The document is that of `plan analyze --json`, with the ceilings of the roofline and the sentences of the screen.
    """
    return analyze_document(step)


@router.get("/graph")
def graph(step: Step) -> Graph:
    """Return an engine step as a graph of operators, equal layers folded; the node times add up to the step time."""
    return graph_document(step)


@router.get("/memory")
def memory(step: Step) -> dict[str, Any]:
    """Return the memory of one accelerator while it holds the batch, by kind of layer."""
    return memory_document(step)
