"""The command `plan keys`: every key of a scenario file."""

from __future__ import annotations

from planner.cli.options import JsonTo, put

#: Heading of the keys without a panel.
NO_PANEL = "Request"


def keys(json_file: JsonTo = None) -> None:
    """List every key of SCENARIO.yaml and of --set KEY=VALUE, with its type and its option.

    plan keys
    """
    from dataclasses import asdict

    from planner.problem.request_keys import request_keys

    put({"keys": [asdict(key) for key in request_keys().values()]}, json_file, _show)


def _show() -> None:
    from itertools import groupby

    from planner.problem.request_keys import request_keys

    panels = list(dict.fromkeys(key.panel or NO_PANEL for key in request_keys().values()))
    table = sorted(request_keys().values(), key=lambda key: panels.index(key.panel or NO_PANEL))
    width = max(len(key.name) for key in table)
    for panel, group in groupby(table, key=lambda key: key.panel or NO_PANEL):
        print(f"{panel}:")
        for key in group:
            option = f" [{key.option}]" if key.option else ""
            print(f"  {key.name:<{width}}  {key.kind:<7}  {key.help}{option}")
    print("Keys of deployment.yaml that all candidates share go under `fixed`; --set takes them by their own names.")
