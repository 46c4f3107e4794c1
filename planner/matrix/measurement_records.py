"""What an engine did when cells were measured on it: a record for each probe and each replay, written at once.

A measurement belongs to one engine in one configuration on one machine, which its `engine` key identifies. Each start
of the server is a session with a number. A record holds what the client and the engine's log stated, and nothing that
was derived from it, so rows are made from the records of an earlier run in the same way as from those of this one.
Records of another version of the program count, because they state what happened; only their rows are made again.

| kind | keys |
|---|---|
| PROBE | `engine`, `session`, `probe` (single requests, bursts, the engine's steps, its version, the cores of others) |
| REPLAY | `engine`, `session`, `cell` (key of the cell and its requests), `run` (every request), `others_cores` |
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from calibration.accuracy.measured_run import MeasuredRun
from calibration.serve.probe import Probe
from catalogs.workloads.request_set import RequestSet
from planner.matrix.cells import Cell
from planner.matrix.records import RowRecords
from simulator.verify.engines import EngineChoice, EngineSubject
from simulator.verify.measurement import Probed

#: Number of the records of a probe; the rows of `planner/matrix/records.py` have a smaller number.
PROBE: Final = 101

#: Number of the records of a replay.
REPLAY: Final = 102

#: Number of the way in which cells are measured; a change of it makes earlier measurements count no longer.
METHOD: Final = 2


@dataclass(frozen=True, slots=True)
class MeasuredReplay:
    """One replay of the requests of a cell.

    Attributes:
        session: The start of the server that served it.
        run: The measured run.
        others_cores: Cores that other processes used meanwhile.
    """

    session: int
    run: MeasuredRun
    others_cores: float


class EngineMeasurements:
    """The measurements of one engine in one configuration, in memory and, if there is a file, on the disk.

    Args:
        engine: The key of the engine (`engine_key`).
        records: The file; None keeps them in memory alone.

    Raises:
        InputError: The file is damaged or cannot be read.
    """

    def __init__(self, engine: str, records: RowRecords | None = None) -> None:
        self._engine, self._records = engine, records
        self._probes: list[tuple[int, Probed]] = []
        self._replays: dict[str, list[MeasuredReplay]] = {}
        self.ends_with_probe = False
        for record in records.of_kinds({PROBE, REPLAY}) if records is not None else ():
            if record.get("engine") == engine:
                self._keep(record)

    @property
    def last_session(self) -> int:
        """Return the number of the last session with a measurement; 0 if there is none."""
        replays = (replay.session for found in self._replays.values() for replay in found)
        return max((*(session for session, _ in self._probes), *replays), default=0)

    def replays(self, cell: str) -> Sequence[MeasuredReplay]:
        """Return the replays of a cell, by its key (`cell_key`), in order."""
        return tuple(self._replays.get(cell, ()))

    def probes(self, sessions: Collection[int]) -> list[Probed]:
        """Return the probes of some sessions, in order."""
        return [probed for session, probed in self._probes if session in sessions]

    def add_probe(self, session: int, probed: Probed) -> None:
        """Keep a probe.

        Raises:
            InputError: The file cannot be written.
        """
        self._add({"op_code": PROBE, "engine": self._engine, "session": session, "probe": probe_document(probed)})

    def add_replay(self, cell: str, replay: MeasuredReplay) -> None:
        """Keep a replay of a cell, by its key (`cell_key`).

        Raises:
            InputError: The file cannot be written.
        """
        found = {"run": replay.run.document(), "others_cores": replay.others_cores}
        self._add({"op_code": REPLAY, "engine": self._engine, "session": replay.session, "cell": cell, **found})

    def _add(self, record: Mapping[str, Any]) -> None:
        if self._records is not None:
            self._records.append(record)
        self._keep(record)

    def _keep(self, record: Mapping[str, Any]) -> None:
        """Keep what a record states; one of another version of the product may lack keys, and then counts for nothing.

        A measurement that has just been made is kept from its record as well, so that rows are the same after a resume.
        """
        try:
            session = int(record["session"])
            if record["op_code"] == PROBE:
                self._probes.append((session, read_probe(record["probe"])))
            else:
                found = MeasuredReplay(session, MeasuredRun.read(record["run"]), float(record["others_cores"]))
                self._replays.setdefault(str(record["cell"]), []).append(found)
        except (KeyError, TypeError, ValueError):
            return
        self.ends_with_probe = record["op_code"] == PROBE


def engine_key(subject: EngineSubject, choice: EngineChoice, client: str) -> str:
    """Return what identifies an engine in one configuration on this machine, whatever its port is."""
    launch = subject.launch
    words = [] if launch is None else [word for word in launch.command if word != str(launch.port)]
    return _digest(
        {
            "method": METHOD,
            "machine": (platform.node(), platform.machine()),
            "deployment": subject.deployment.model_dump(mode="json"),
            "threads": choice.limits.threads,
            "command": words,
            "environment": {} if launch is None else dict(launch.env),
            "client": client,
        }
    )


def cell_key(cell: Cell, requests: RequestSet) -> str:
    """Return what identifies a cell and the requests that it sends, so that a changed workload is measured anew."""
    lengths = requests.input_tokens.tolist(), requests.output_tokens.tolist(), requests.arrival_s.tolist()
    return _digest({"cell": asdict(cell), "lengths": lengths, "concurrency": requests.concurrency})


def _digest(found: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:24]


def probe_document(probed: Probed) -> dict[str, Any]:
    """Return a probe as JSON data, from which `read_probe` makes an equal one."""
    found = probed.probe
    log = None if probed.log is None else {str(name): column.tolist() for name, column in probed.log.items()}
    return {
        "single": found.single.document(),
        "bursts": found.bursts.document(),
        "burst_sizes": list(found.burst_sizes),
        "burst_passes": list(found.burst_passes),
        "log": None if log is None else {name: [_finite(x) for x in values] for name, values in log.items()},
        "engine_version": probed.engine_version,
        "others_cores": probed.others_cores,
    }


def read_probe(document: Mapping[str, Any]) -> Probed:
    """Return the probe of a document.

    Raises:
        KeyError, TypeError, ValueError: It is not the document of a probe.
    """
    import pandas as pd

    single, bursts = (MeasuredRun.read(document[name]) for name in ("single", "bursts"))
    sizes, passes = (tuple(document[name]) for name in ("burst_sizes", "burst_passes"))
    log = document["log"]
    frame = None if log is None else pd.DataFrame({name: _numbers(values) for name, values in log.items()})
    probe = Probe(single, bursts, sizes, passes)
    return Probed(probe, frame, str(document["engine_version"]), float(document["others_cores"]))


def _finite(value: Any) -> Any:
    """Return a value of a table; None in place of a number that is not finite, because JSON has none."""
    return None if isinstance(value, float) and value - value != 0.0 else value


def _numbers(values: list[Any]) -> list[Any]:
    """Return the values of a column of a table; NaN in place of None."""
    return [float("nan") if value is None else value for value in values]
