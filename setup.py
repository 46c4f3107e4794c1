"""Build the package: plain Python, or with compiled modules of the simulator if CAPACITY_PLANNER_COMPILE=1 is set.

docs/install.md says when this is worth it. Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
#: The list of modules, and the file of their digests.
COMPILED = runpy.run_path(str(ROOT / "simulator/core/mypyc_modules.py"))["COMPILED"]
INSTALLATION = runpy.run_path(str(ROOT / "catalogs/ui/installation.py"))
#: The compiler checks types first, so it needs the dependencies besides itself.
COMPILER = ["mypy>=2", "pandas-stubs", "scipy-stubs", "types-PyYAML"]
#: No result may depend on the processor: some compilers would otherwise fuse a multiplication with an addition.
FLAGS = ["-ffp-contract=off"]


class Compile(build_ext):
    """Compiles the modules into the build folder, never beside the sources of a checkout."""

    def run(self) -> None:
        """Compile, and record the digests of the sources."""
        if self.inplace or self.editable_mode:
            raise SystemExit("modules are not compiled in a checkout, where edits of their source would have no effect")
        super().run()
        target = Path(self.build_lib) / INSTALLATION["DIGESTS"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(INSTALLATION["digests"](COMPILED, ROOT), indent=1) + "\n", encoding="utf-8")


def compiled() -> dict[str, Any]:
    """Return the arguments of setup() that compile the modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "egg_info" in sys.argv:  # pip asks what the build requires
        return {"setup_requires": COMPILER + project["dependencies"]}
    if "editable_wheel" in sys.argv:
        print("CAPACITY_PLANNER_COMPILE has no effect on an editable installation: edits would have no effect")
    if not {"build", "bdist_wheel"} & set(sys.argv):
        return {}
    from mypyc.build import mypycify

    modules = mypycify(list(COMPILED), opt_level="3", debug_level="0", group_name="llm_capacity_planner")
    for module in modules:
        module.extra_compile_args += FLAGS
    return {"ext_modules": modules, "cmdclass": {"build_ext": Compile}}


setup(**compiled() if os.environ.get("CAPACITY_PLANNER_COMPILE") == "1" else {})
