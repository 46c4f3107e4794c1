"""Pages announce every module that their scripts import."""

from __future__ import annotations

import re

import httpx
import pytest

from planner.web.pages import PAGES
from planner.web.scripts import FOLDER, module_addresses, module_file

#: Every import of a module, found in another way than the product does: any quoted address of a script.
QUOTED = re.compile(r'from\s*"(/static/js/[\w/.-]+)"')

FORM = re.compile("<form[^>]*>")


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_the_modules_of_a_page_are_those_that_its_scripts_name(page: str) -> None:
    found = module_addresses(page)
    own = [f"/static/js/{page}.js"]
    named = {
        name
        for path in (*own, *found)
        for name in QUOTED.findall(module_file(path.removeprefix("/static/js/")).read_text())
    }
    assert set(found) == named - set(own)


def test_a_page_without_a_script_announces_nothing() -> None:
    assert module_addresses("missing") == ()


def test_a_page_holds_the_announcements(client: httpx.Client) -> None:
    shown = client.get("/analyze").text
    assert '<link rel="modulepreload" href="/static/js/step_form.js">' in shown
    for path in re.findall(r'rel="modulepreload" href="([^"]+)"', shown):
        assert client.get(path).status_code == 200


def test_no_form_takes_input_before_its_script_is_ready() -> None:
    """An early click would load the page again, and the state in the address would replace early input."""
    templates = sorted(FOLDER.parents[1].glob("templates/*.html"))
    forms = [form for file in templates for form in FORM.findall(file.read_text())]
    assert len(forms) > 5
    assert [form for form in forms if " inert" not in form] == []
