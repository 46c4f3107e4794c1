"""The pages: one template and one script each, which call the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException

from catalogs.ui.html_page import CHART_FIT
from catalogs.ui.installation import own_version
from planner.web.problems import http_problem
from planner.web.scripts import module_addresses, module_file

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page of the navigation: `templates/NAME.html` and `static/js/NAME.js`.

    Attributes:
        context: Returns what the template needs besides the page; it is called at the first request.
    """

    path: str
    name: str
    title: str
    context: Callable[[], dict[str, Any]] = dict


@cache
def _question() -> dict[str, Any]:
    """Return what the form of a question needs, `templates/_question.html`; the imports are heavy."""
    from planner.problem.interactivity import INTERACTIVITY
    from planner.problem.latency_metrics import LATENCY_METRICS
    from planner.problem.slo import STATS
    from planner.web.documents import question_form as form

    metrics = {key: metric.title for key, metric in LATENCY_METRICS.items()}
    found: dict[str, Any] = {"groups": form.further_groups(), "choices": form.essential_choices()}
    found |= {"goals": form.goals(), "language_goals": form.language_goals(), "only_of": form.only_of}
    rates = {INTERACTIVITY: "output tokens per second of a request"}
    return found | {"presets": form.PRESETS, "metrics": metrics, "rates": rates, "stats": STATS}


@cache
def _front() -> dict[str, Any]:
    """Return the form of a question, the axes of a front by name, and the keys that its question may have."""
    from planner.problem.front import PER_TOKEN
    from planner.problem.request_keys import FRONT_KEYS

    metrics = _question()["metrics"]
    latencies = {f"{name}.{stat}": f"{title}, {stat}" for name, title in metrics.items() for stat in ("p99", "mean")}
    axes = {name: words for name, (_, words) in PER_TOKEN.items()} | latencies
    return _question() | {"axes": axes, "front_keys": FRONT_KEYS}


@cache
def _step() -> dict[str, Any]:
    """Return what the form of a step needs, `templates/_step.html`."""
    from catalogs.engines.files import list_engines, load_engine
    from catalogs.units import DTYPE_BYTES

    engines = [load_engine(name) for name in list_engines(supported_only=True)]
    kv_dtypes = {dtype for engine in engines for dtype in engine.kv_dtypes}
    return {"weight_dtypes": DTYPE_BYTES, "kv_dtypes": [name for name in DTYPE_BYTES if name in kv_dtypes]}


@cache
def _jobs() -> dict[str, Any]:
    """Return the kinds of jobs."""
    from planner.web.jobs.registry import KINDS

    return {"kinds": [name for name, kind in KINDS.items() if not kind.derived]}


#: The pages in the order of the navigation.
PAGES: Final = (
    WebPage("/", "overview", "Overview"),
    WebPage("/plan", "plan", "Plan", _question),
    WebPage("/analyze", "analyze", "Analyze", _step),
    WebPage("/graph", "graph", "Graph", _step),
    WebPage("/simulate", "simulate", "Simulate"),
    WebPage("/compare", "compare", "Compare"),
    WebPage("/fronts", "fronts", "Fronts", _front),
    WebPage("/calibrate", "calibrate", "Calibrate"),
    WebPage("/run", "run", "Inference task"),
    WebPage("/catalog", "catalog", "Catalog"),
    WebPage("/jobs", "jobs", "Jobs", _jobs),
)


def prepare() -> None:
    """Compute what the templates need before a page is first shown."""
    for page in PAGES:
        page.context()


templates = Jinja2Templates(FOLDER / "templates")
templates.env.globals["module_addresses"] = module_addresses

router = APIRouter(include_in_schema=False)


def _add(page: WebPage) -> None:
    @router.get(page.path, response_class=HTMLResponse, name=page.name)
    def show(request: Request) -> HTMLResponse:
        found = {"page": page, "pages": PAGES, "version": own_version(), **page.context()}
        return templates.TemplateResponse(request, f"{page.name}.html", found)


def add_missing_page(app: FastAPI) -> None:
    """Answer a browser with a page where there is none; programs get problem details."""

    @app.exception_handler(404)
    def missing(request: Request, error: HTTPException) -> Response:
        if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
            return http_problem(error)
        page = WebPage(request.url.path, "missing", "There is no such page")
        found = {"page": page, "pages": PAGES, "version": own_version()}
        return templates.TemplateResponse(request, "missing.html", found, 404)


for _page in PAGES:
    _add(_page)


@router.get(f"/static/js/{CHART_FIT}")
def chart_fit() -> FileResponse:
    """Return the module that fits charts into their place, which reports contain too."""
    return FileResponse(module_file(CHART_FIT), media_type="text/javascript")
