"""What every question needs, loaded by a thread after the server has started, so that first questions need not wait.

The server itself starts without the planner, and shows its first page while this thread works. Until it is done,
`/readyz` answers that the server is not ready; questions are answered all the same, but wait for what they need.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from typing import Final

from catalogs.errors import InputError
from planner.web import pages

#: Time from the start to the beginning of the work; the first page is answered before, seconds.
_AFTER_S: Final = 0.2

#: Modules that handlers import when they are first called, since the server would start slowly otherwise.
_IMPORTED_LATER: Final = tuple(
    f"planner.web.documents.{name}"
    for name in ("catalogs", "analysis", "graph", "memory", "guess", "question_form", "deployment_text", "answers")
)

_LOG: Final = logging.getLogger(__name__)


class WarmUp:
    """The thread, and whether its work is done."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Begin to load shortly after this call, unless an earlier call has begun it."""
        if self._timer is not None and (self.is_done or self._timer.is_alive()):
            return
        self._timer = threading.Timer(_AFTER_S, self._work)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Do not begin, if the work has not begun."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_done(self) -> bool:
        """Return whether the first questions find everything loaded."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the work is done, and return whether it is."""
        return self._done.wait(timeout_s)

    def _work(self) -> None:
        try:
            load_everything()
        finally:  # a fault here is that of the first question that needs the same
            self._done.set()


def load_everything() -> None:
    """Import what handlers import at their first calls, and read the catalogs and calibrations that questions share."""
    for name in _IMPORTED_LATER:
        import_module(name)
    pages.prepare()

    from calibration.accuracy.stated_error import load_file
    from catalogs.engines.files import list_engines, load_engine
    from planner.web.documents import catalogs

    catalogs.models()
    catalogs.hardware()
    load_file()
    for engine in list_engines(supported_only=True):
        load_engine(engine)
    _load_calibrations()


def _load_calibrations() -> None:
    """Read each calibration once, whatever hardware it is of."""
    from calibration.bundles.bundle import calibration_source, load_bundle
    from catalogs.hardware.catalog import list_hardware, parse_hardware

    units = [parse_hardware(name).accelerator for name in list_hardware()]
    for unit in {calibration_source(unit): unit for unit in units}.values():
        try:
            load_bundle(unit)
        except InputError as error:  # a damaged calibration of the user's own: questions about its hardware name it
            _LOG.warning("%s", error)
