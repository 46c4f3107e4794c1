"""What a run left out, in its last line; with `--strict-skips` the run fails where something could have been installed.

A reason that begins with "hardware: " names something that no installation brings. Every other reason is a missing
package, server or data set, which CI has to provide: a test that is skipped there tests nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

HARDWARE = "hardware: "

#: Marked tests that the usual command leaves out, and the command that runs them.
COMMANDS = {"slow": "pytest -m slow", "vllm": "VLLM_PYTHON=ENV/bin/python pytest -m vllm"}

_KEY = pytest.StashKey[Counter[str]]()  # tests that were not selected, by marker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--strict-skips`."""
    rule = "fail on every skip whose reason is not about hardware"
    parser.addoption("--strict-skips", action="store_true", help=rule)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        for name in COMMANDS:
            item.config.stash[_KEY][name] += item.get_closest_marker(name) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist did not select; all workers collect the same tests."""
    node.config.stash[_KEY] |= Counter(getattr(node, "workeroutput", {}).get("not_selected", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Set the exit status before the summary of pytest, and print the last line after it."""
    config = session.config
    if hasattr(config, "workerinput"):
        config.workeroutput["not_selected"] = dict(config.stash[_KEY])  # type: ignore[attr-defined]
        yield
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reasons = Counter(_reason(report) for report in (reporter.stats.get("skipped", []) if reporter else []))
    missing = sum(n for reason, n in reasons.items() if not reason.startswith(HARDWARE))
    fails = missing > 0 and config.getoption("--strict-skips")
    if fails and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield
    if reporter is not None:
        reporter.write_line(last_line(reasons, config.stash[_KEY], missing if fails else 0))


def last_line(reasons: Counter[str], not_selected: Counter[str], failing: int) -> str:
    """Return what was skipped, for which reasons, and what was not selected."""
    listed = "; ".join(f"{n} x {reason}" for reason, n in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])))
    parts = [f"Skipped: {listed or 'none'}."]
    left_out = [f"{n} {name} ({COMMANDS[name]})" for name, n in not_selected.items() if n]
    if left_out:
        parts.append(f"Not selected: {', '.join(left_out)}.")
    if failing:
        parts.append(f"FAILED (--strict-skips): {failing} skipped for a reason other than hardware.")
    return " ".join(parts)


def _reason(report: Any) -> str:
    """Return the reason of a skipped test or file on one line."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split()).rstrip(".")
