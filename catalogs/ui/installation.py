"""What is installed: the version of the product, and whether modules of the simulator are compiled.

A build with compiled modules records the digests of their sources in DIGESTS (`setup.py`). No other module reads
that file, so `--version` and the simulator never differ. `setup.py` runs this file in an environment without any
dependency, so its first lines import only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "llm-capacity-planner"

#: The file of a compiled installation with the SHA-256 digest of every compiled source, below the root.
DIGESTS: Final = "simulator/compiled.json"

ROOT: Final = Path(__file__).resolve().parents[2]


def own_version() -> str:
    """Return the version of the installed product, or "not installed" for a folder that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # here, because it takes 10 ms

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "not installed"


def digests(paths: Iterable[str], root: Path = ROOT) -> dict[str, str | None]:
    """Return the SHA-256 digests of sources, given as paths below `root`; None for a file that is missing."""
    from hashlib import sha256  # here, because it takes 5 ms

    found: dict[str, str | None] = {}
    for path in paths:
        source = root / path
        found[path] = sha256(source.read_bytes()).hexdigest() if source.is_file() else None
    return found


def is_compiled(root: Path = ROOT) -> bool:
    """Return whether this installation has compiled modules.

    Raises:
        InputError: The source of a compiled module was edited after it had been compiled, so edits have no effect.
    """
    try:
        recorded = json.loads((root / DIGESTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    edited = [path for path, digest in digests(recorded, root).items() if recorded[path] != digest]
    if edited:
        from catalogs.errors import InputError  # here, because setup.py runs this file without the packages

        raise InputError("a compiled module differs from its source; install the package again", ", ".join(edited))
    return True
