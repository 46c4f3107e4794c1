"""The command `plan keys`: every key of a scenario file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.cli.options import JsonTo, write_result

if TYPE_CHECKING:
    from planner.problem.request_keys import RequestKey

#: Heading of the keys without a panel.
NO_PANEL = "Request"


def keys(json_file: JsonTo = None) -> None:
    """List every key of SCENARIO.yaml and of --set KEY=VALUE, with its type and its option.

    plan keys
    """
    from dataclasses import asdict

    from planner.problem.request_keys import network_keys, request_keys

    own = [asdict(key) for key in network_keys().values()]
    write_result({"keys": [asdict(key) for key in request_keys().values()], "network_keys": own}, json_file, _show)


def _list(heading: str, table: list[RequestKey]) -> None:
    from planner.problem.request_keys import plan_keys

    width = max(map(len, plan_keys()))
    print(f"{heading}:")
    for key in table:
        option = f" [{key.option}]" if key.option else ""
        print(f"  {key.name:<{width}}  {key.kind:<7}  {key.help}{option}")


def _show() -> None:
    from planner.problem.request_keys import network_keys, request_keys

    table = list(request_keys().values())
    for panel in dict.fromkeys(key.panel or NO_PANEL for key in table):
        _list(panel, [key for key in table if (key.panel or NO_PANEL) == panel])
    _list("Networks only", [key for name, key in network_keys().items() if name not in request_keys()])
    print("Keys of deployment.yaml that all candidates share go under `fixed`; --set takes them by their own names.")
