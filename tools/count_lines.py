"""Lines of code, documentation and blanks of each package, as radon counts them.

    python tools/count_lines.py              # the four packages
    python tools/count_lines.py simulator tests

Code is radon's SLOC: lines that are neither blank, nor a comment alone, nor a docstring. Documentation is docstrings,
and comments that have a line of their own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from radon.raw import analyze

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("catalogs", "calibration", "simulator", "planner")


def main() -> None:
    """Print one row for each folder, and their sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=PACKAGES, help="relative to the root of the repository")
    rows = []
    for folder in parser.parse_args().folders:
        files = [analyze(path.read_text(encoding="utf-8")) for path in sorted((ROOT / folder).rglob("*.py"))]
        documentation = sum(f.multi + f.single_comments for f in files)
        rows.append((folder, len(files), sum(f.sloc for f in files), documentation, sum(f.blank for f in files)))
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    print(f"{'package':12} {'files':>6} {'code':>8} {'documentation':>14} {'blank':>8} {'lines':>8}")
    for name, n_files, code, documentation, blank in rows:
        lines = code + documentation + blank
        print(f"{name:12} {n_files:6} {code:8,} {documentation:14,} {blank:8,} {lines:8,}")


if __name__ == "__main__":
    main()
