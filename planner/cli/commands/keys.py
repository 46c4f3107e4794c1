"""The command `plan keys`: every key of a scenario file."""

from __future__ import annotations

from planner.cli.options import JsonTo, write_result

#: Heading of the keys without a panel.
NO_PANEL = "Request"


def keys(json_file: JsonTo = None) -> None:
    """List every key of SCENARIO.yaml and of --set KEY=VALUE, with its type and its option.

    plan keys
    """
    from dataclasses import asdict

    from planner.problem.request_keys import request_keys

    write_result({"keys": [asdict(key) for key in request_keys().values()]}, json_file, _show)


def _show() -> None:
    from planner.problem.request_keys import request_keys

    table = list(request_keys().values())
    width = max(len(key.name) for key in table)
    for panel in dict.fromkeys(key.panel or NO_PANEL for key in table):
        print(f"{panel}:")
        for key in (key for key in table if (key.panel or NO_PANEL) == panel):
            option = f" [{key.option}]" if key.option else ""
            print(f"  {key.name:<{width}}  {key.kind:<7}  {key.help}{option}")
    print("Keys of deployment.yaml that all candidates share go under `fixed`; --set takes them by their own names.")
