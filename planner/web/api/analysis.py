"""The addresses of what is computed about one engine step: its analysis, its graph of operators, and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query

from planner.web.api.state import PREFIX, Owner, State
from planner.web.documents.shapes import STEP_HELP, Graph
from planner.web.questions import shown_names
from planner.web.uploads import LocalFile, with_names

if TYPE_CHECKING:
    from planner.studies.step_analysis import StepQuery

Document = TypeVar("Document", bound=Mapping[str, Any])

router = APIRouter(prefix=PREFIX, tags=["steps"])


@dataclass(frozen=True, slots=True)
class NamedStep:
    """The step that a client names, with the uploaded files that it names.

    Attributes:
        values: The attributes of a `StepQuery`, with uploads by their path on this machine.
        files: The uploads.
    """

    values: dict[str, Any]
    files: tuple[LocalFile, ...]

    def shown(self, document: Document) -> Document:
        """Return a document of the step in which uploads have their original names."""
        found: Document = with_names(document, self.files)
        return found

    @contextmanager
    def query(self) -> Iterator[StepQuery]:
        """Give the query; errors inside the block name uploads by their original names.

        Raises:
            InputError: The query is not valid, or the catalog has no such model.
        """
        from planner.studies.step_analysis import StepQuery
        from planner.web.documents.analysis import named_model

        with shown_names(self.files):
            model = self.values["model"] if self.files else named_model(self.values["model"])
            yield StepQuery(**self.values | {"model": model})


def named_step(
    state: State,
    owner: Owner,
    model: Annotated[str, Query(max_length=200, description=STEP_HELP["model"] + " Or upload:SHA256.")],
    hardware: Annotated[str, Query(max_length=100, description=STEP_HELP["hardware"])],
    batch: Annotated[int, Query(ge=1, description=STEP_HELP["batch"])] = 1,
    context: Annotated[int, Query(ge=1, description=STEP_HELP["context"])] = 1024,
    stage: Annotated[str, Query(max_length=20, description=STEP_HELP["stage"])] = "decode",
    engine: Annotated[str, Query(max_length=100, description=STEP_HELP["engine"])] = "vllm",
    weight_dtype: Annotated[str | None, Query(max_length=20, description=STEP_HELP["weight_dtype"])] = None,
    kv_dtype: Annotated[str | None, Query(max_length=20, description=STEP_HELP["kv_dtype"])] = None,
    tensor_parallel: Annotated[int | None, Query(ge=1, le=1024, description=STEP_HELP["tensor_parallel"])] = None,
    images: Annotated[int, Query(ge=0, le=1000, description=STEP_HELP["images"])] = 0,
    resolution: Annotated[str, Query(max_length=20, description=STEP_HELP["resolution"])] = "1024x1024",
) -> NamedStep:
    """Return the step that a client names."""
    texts = {"model": model, "hardware": hardware, "stage": stage, "engine": engine}
    dtypes = {"weight_dtype": weight_dtype or None, "kv_dtype": kv_dtype or None}
    local, files = state.uploads.local(texts, owner)
    numbers = {"batch": batch, "context": context, "tensor_parallel": tensor_parallel, "images": images}
    return NamedStep(local | dtypes | numbers | {"resolution": resolution}, files)


Step = Annotated[NamedStep, Depends(named_step)]


@router.get("/analyze")
def analyze(step: Step) -> dict[str, Any]:
    """Analyse one engine step: its operators, bounds, memory, precisions and scaling.

    The document is that of `plan analyze --json`, with the ceilings of the roofline and the sentences of the screen.
    """
    from planner.web.documents.analysis import analyze_document

    with step.query() as query:
        return step.shown(analyze_document(query))


@router.get("/graph")
def graph(step: Step) -> Graph:
    """Return an engine step as a graph of operators, equal layers folded; the node times add up to the step time."""
    from planner.web.documents.graph import graph_document

    with step.query() as query:
        return step.shown(graph_document(query))


@router.get("/memory")
def memory(step: Step) -> dict[str, Any]:
    """Return the memory of one accelerator while it holds the batch, by kind of layer."""
    from planner.web.documents.memory import memory_document

    with step.query() as query:
        return step.shown(memory_document(query))
