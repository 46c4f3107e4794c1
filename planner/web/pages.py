"""The pages: one template and one script each, which call the API."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException

from catalogs.ui.shared_options import own_version
from planner.web.problems import http_problem
from planner.web.scripts import module_addresses

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page of the navigation: `templates/NAME.html` and `static/js/NAME.js`."""

    path: str
    name: str
    title: str


#: The pages in the order of the navigation.
PAGES: Final = (
    WebPage("/", "overview", "Overview"),
    WebPage("/plan", "plan", "Plan"),
    WebPage("/analyze", "analyze", "Analyze"),
    WebPage("/graph", "graph", "Graph"),
    WebPage("/simulate", "simulate", "Simulate"),
    WebPage("/compare", "compare", "Compare"),
    WebPage("/fronts", "fronts", "Fronts"),
    WebPage("/calibrate", "calibrate", "Calibrate"),
    WebPage("/run", "run", "Inference task"),
    WebPage("/catalog", "catalog", "Catalog"),
    WebPage("/jobs", "jobs", "Jobs"),
)


@cache
def _context(name: str) -> dict[str, Any]:
    """Return what the template of a page needs besides the page; the imports are heavy and not for all pages."""
    if name in ("plan", "fronts"):  # include the form of a question, `templates/_question.html`
        from planner.problem.latency_metrics import LATENCY_METRICS
        from planner.problem.slo import STATS
        from planner.web.documents.question_form import essential_choices, further_groups

        metrics = {key: metric.title for key, metric in LATENCY_METRICS.items()}
        found = {"groups": further_groups(), "choices": essential_choices(), "metrics": metrics, "stats": STATS}
        return found | (_of_front(metrics) if name == "fronts" else {})
    if name == "jobs":
        from planner.web.jobs.registry import KINDS

        return {"kinds": tuple(KINDS)}
    return {}


def prepare() -> None:
    """Compute what the templates need before a page is first shown."""
    for page in PAGES:
        _context(page.name)


def _of_front(metrics: dict[str, str]) -> dict[str, Any]:
    """Return the axes of a front by name, and the keys that its question may have."""
    from planner.cli.commands.front import KEYS
    from planner.search.pareto_space import PER_TOKEN

    latencies = {f"{name}.{stat}": f"{title}, {stat}" for name, title in metrics.items() for stat in ("p99", "mean")}
    return {"axes": {name: words for name, (_, words) in PER_TOKEN.items()} | latencies, "front_keys": KEYS}


templates = Jinja2Templates(FOLDER / "templates")
templates.env.globals["module_addresses"] = module_addresses

router = APIRouter(include_in_schema=False)


def _add(page: WebPage) -> None:
    @router.get(page.path, response_class=HTMLResponse, name=page.name)
    def show(request: Request) -> HTMLResponse:
        found = {"page": page, "pages": PAGES, "version": own_version(), **_context(page.name)}
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
