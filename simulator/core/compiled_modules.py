"""The modules of the simulator that a build may compile, and the check that compiled modules match their source.

The source of these modules is plain Python and runs as it is. If CAPACITY_PLANNER_COMPILE=1 is set when the package is
installed, `setup.py` also compiles them with mypyc; Python then loads the compiled modules, with the same results. An
editable installation never compiles, so edits always take effect there. As a second barrier, a compiled installation
carries the digests of the sources that it was compiled from, and refuses to run if one of them has been edited.

This file is read by `setup.py` in an environment without any dependency, so it imports only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    Class = TypeVar("Class", bound=type)

    def mypyc_attr(**_: Any) -> Callable[[Class], Class]:
        """Return a decorator that does nothing: only the compiler reads its arguments."""
        return lambda cls: cls


#: The compiled modules, as paths below the root of the repository. They are those that run in every engine step:
#: conversations spend 80 % of their processor time there. Modules that run once per request or less stay out, and so
#: do those that the compiler does not accept: classes with two bases (simulator/schedulers/speculative.py) and
#: descriptors (simulator/core/step_log.py).
COMPILED: Final = (
    "simulator/cache/kv_cache.py",
    "simulator/core/batch.py",
    "simulator/core/request.py",
    "simulator/core/step_timer.py",
    "simulator/costs/step_cost.py",
    "simulator/engine/api_server.py",
    "simulator/engine/replica.py",
    "simulator/engine/step_loop.py",
    "simulator/engine/token_accounting.py",
    "simulator/schedulers/completion_rounds.py",
    "simulator/schedulers/continuous_batching.py",
    "simulator/schedulers/sglang.py",
    "simulator/schedulers/trtllm.py",
    "simulator/schedulers/vllm_v1.py",
)

#: The file of a compiled installation with the SHA-256 digest of every compiled source, below the root.
DIGESTS: Final = "simulator/compiled.json"

ROOT: Final = Path(__file__).resolve().parents[2]


def digests(root: Path = ROOT) -> dict[str, str]:
    """Return the SHA-256 digests of the sources of the compiled modules below `root`."""
    return {path: sha256((root / path).read_bytes()).hexdigest() for path in COMPILED}


def in_use(root: Path = ROOT) -> bool:
    """Return whether this installation has compiled modules.

    Raises:
        ImportError: The source of a compiled module was edited after it had been compiled.
    """
    try:
        recorded = json.loads((root / DIGESTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    edited = [path for path, digest in digests(root).items() if recorded.get(path) != digest]
    if edited:
        raise ImportError(f"{', '.join(edited)}: edited after it was compiled; install the package again")
    return True


#: Whether the simulator runs compiled modules.
IS_COMPILED: Final = in_use()
