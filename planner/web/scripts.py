"""The JavaScript modules of a page, which the page announces so that a browser loads all of them at once.

Without this a browser finds the modules that a module imports only after it has read it: one round trip for each level.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from catalogs.io.yaml_files import DATA
from catalogs.ui.html_page import CHART_FIT

FOLDER: Final = Path(__file__).parent / "static" / "js"

#: Modules that are kept elsewhere because reports contain them too, by name.
_SHARED: Final = {CHART_FIT: DATA / "page" / CHART_FIT}

#: The address of the folder.
_ADDRESS: Final = "/static/js/"

#: A static import of a module of this folder, which may span lines; dynamic ones load when they are needed.
_IMPORT: Final = re.compile(rf'^(?:import|export)\b[^;"\']*?["\']{_ADDRESS}([\w/.-]+)["\']', re.MULTILINE)


def module_addresses(name: str) -> tuple[str, ...]:
    """Return the addresses of the modules that the script of a page imports, directly or through others.

    The script itself is not among them. An unknown script imports nothing.
    """
    found: dict[str, None] = {}
    unread = [f"{name}.js"]
    while unread:
        imported = _imports(unread.pop())
        unread += [module for module in imported if module not in found]
        found |= dict.fromkeys(imported)
    return tuple(_ADDRESS + module for module in found if module != f"{name}.js")


def module_file(name: str) -> Path:
    """Return the file of a module; it need not exist."""
    return _SHARED.get(name, FOLDER / name)


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the names of the files that a module imports."""
    file = module_file(module)
    return tuple(_IMPORT.findall(file.read_text(encoding="utf-8"))) if file.is_file() else ()
