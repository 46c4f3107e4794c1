"""Measure the size of an installation, or what an extra adds to it: `python tools/extra_size.py --most-mb 250`.

pip resolves the package, with and without the extra if one is named (`python tools/extra_size.py web`). The packages,
or those of the difference, are installed into an empty folder, compiled as usual, and the sizes of their files are
added up. Without an extra, this package itself counts as well. The command fails if they exceed the limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OWN = "llm-capacity-planner"


def resolved(pip: Path, what: str) -> dict[str, str]:
    """Return the version of every package that pip would install for `what` in an empty environment, by name."""
    options = ["--quiet", "--dry-run", "--ignore-installed", "--constraint", str(ROOT / "constraints.txt")]
    done = subprocess.run(
        [str(pip), "install", *options, "--report", "-", what], check=True, stdout=subprocess.PIPE, text=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}


def installed_bytes(pip: Path, packages: dict[str, str], folder: Path) -> int:
    """Install packages without what they depend on into a folder, and return the size of all files there."""
    names = [str(ROOT) if name == OWN else f"{name}=={version}" for name, version in packages.items()]
    subprocess.run(
        [str(pip), "install", "--quiet", "--no-deps", "--target", str(folder), *names], check=True, stdout=sys.stderr
    )
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> int:
    """Print the packages of the base, or those that an extra adds, and their size; return 1 if it exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "extra", nargs="?", help="name of the extra, for example web; without one, the base is measured"
    )
    parser.add_argument("--most-mb", type=float, default=float("inf"), metavar="MB", help="fail above this size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "env", with_pip=True)
        pip = folder / "env" / "bin" / "pip"
        base = resolved(pip, str(ROOT))
        whole = base if options.extra is None else resolved(pip, f"{ROOT}[{options.extra}]")
        added = {name: version for name, version in whole.items() if options.extra is None or name not in base}
        megabytes = installed_bytes(pip, added, folder / "added") / 1e6
    print(", ".join(f"{name} {version}" for name, version in sorted(added.items())))
    if options.extra is None:
        print(f"the base has {len(added)} packages with {megabytes:.1f} MB")
    else:
        print(f"[{options.extra}] adds {len(added)} packages with {megabytes:.1f} MB to the {len(base)} of the base")
    return int(megabytes > options.most_mb)


if __name__ == "__main__":
    sys.exit(main())
