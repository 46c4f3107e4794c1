"""The modules of the simulator that a build may compile.

The source of these modules is plain Python and runs as it is. If CAPACITY_PLANNER_COMPILE=1 is set when the package is
installed, `setup.py` also compiles them with mypyc; Python then loads the compiled modules, with the same results. An
editable installation never compiles, so edits always take effect there. As a second barrier, a compiled installation
carries the digests of the sources that it was compiled from, and refuses to run if one of them has been edited
(`catalogs/ui/installation.py`; `simulator/core/__init__.py` asks it).

`setup.py` runs this file in an environment without any dependency, so it imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "simulator/core/completion_rounds.py",
    "simulator/core/request.py",
    "simulator/core/step_timer.py",
    "simulator/costs/step_cost.py",
    "simulator/engine/api_server.py",
    "simulator/engine/fast_lockstep.py",
    "simulator/engine/fast_path.py",
    "simulator/engine/fast_rank.py",
    "simulator/engine/fast_sglang.py",
    "simulator/engine/fast_trtllm.py",
    "simulator/engine/fast_vllm.py",
    "simulator/engine/replica.py",
    "simulator/engine/step_loop.py",
    "simulator/engine/token_accounting.py",
    "simulator/schedulers/continuous_batching.py",
    "simulator/schedulers/declared_output.py",
    "simulator/schedulers/sglang.py",
    "simulator/schedulers/trtllm.py",
    "simulator/schedulers/vllm/v1.py",
)
