"""The pages: one template and one script each, which call the API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates

from catalogs.ui.shared_options import own_version

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

templates = Jinja2Templates(FOLDER / "templates")

router = APIRouter(include_in_schema=False)


def _add(page: WebPage) -> None:
    @router.get(page.path, response_class=HTMLResponse, name=page.name)
    def show(request: Request) -> HTMLResponse:
        found = {"page": page, "pages": PAGES, "version": own_version()}
        return templates.TemplateResponse(request, f"{page.name}.html", found)


for _page in PAGES:
    if (FOLDER / "templates" / f"{_page.name}.html").exists():
        _add(_page)
