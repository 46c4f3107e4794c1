"""The addresses of what is computed about one engine step: its analysis, its graph of operators, and its memory."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from planner.studies.step_analysis import MOST_SEQUENCES, StepQuery
from planner.web.documents.analysis import analyze_document, named_model
from planner.web.documents.graph import Graph, graph_document
from planner.web.documents.memory import memory_document

router = APIRouter(prefix="/api/v1", tags=["steps"])


def step_query(
    model: Annotated[str, Query(max_length=200, description="Model: name in the catalog or Hugging Face id.")],
    hardware: Annotated[str, Query(max_length=100, description="Hardware of one replica, for example h100x8.")],
    batch: Annotated[int, Query(ge=1, le=MOST_SEQUENCES, description="Sequences in the step.")] = 1,
    context: Annotated[int, Query(ge=1, description="Tokens per sequence; for prefill, the prompt length.")] = 1024,
    stage: Annotated[str, Query(max_length=20, description="Stage of inference: decode or prefill.")] = "decode",
    engine: Annotated[str, Query(max_length=100, description="Serving engine.")] = "vllm",
    weight_dtype: Annotated[str | None, Query(max_length=20, description="Data type of the weights.")] = None,
    kv_dtype: Annotated[str | None, Query(max_length=20, description="Data type of the KV cache.")] = None,
    tensor_parallel: Annotated[int | None, Query(ge=1, le=1024, description="Accelerators of the replica.")] = None,
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
