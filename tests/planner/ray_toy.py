"""Candidates evaluated by a toy that notes in which process, and that can be made to die: what a cluster is given."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from catalogs.errors import InputError
from planner.problem.candidate import Candidate
from planner.search.candidate_tester import Assess, Outcome


@dataclass(frozen=True)
class Watched:
    """Writes a file NAME.PID for each candidate begun with. pause_s: of each, while there is a file `hold`.

    dies: the first worker that evaluates this candidate kills itself. here: every process but this one kills itself.
    """

    inner: Assess
    folder: Path
    pause_s: float = 0.0
    dies: Candidate | None = None
    refuses: Candidate | None = None
    here: int | None = None

    def __call__(self, c: Candidate, best: Outcome | None) -> Outcome:
        name = f"{c.layout.tensor_parallel}-{c.max_num_seqs}-{c.max_num_batched_tokens}"
        again = any(self.folder.glob(f"{name}.*"))
        (self.folder / f"{name}.{os.getpid()}").touch()
        if c == self.refuses:
            raise InputError("nothing like this is assessed", c.max_num_seqs, "256")
        if (c == self.dies and not again) or self.here not in (None, os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.hold.exists():
            time.sleep(self.pause_s)
        return self.inner(c, best)

    @property
    def hold(self) -> Path:
        return self.folder / "hold"

    @property
    def pids(self) -> set[int]:
        return {int(p.suffix[1:]) for p in self.folder.glob("*.*")}
