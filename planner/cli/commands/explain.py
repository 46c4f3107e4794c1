"""The command `plan explain`: the reasons for a recommendation."""

from __future__ import annotations

from planner.cli.options import AnswerPath, JsonTo, put


def explain(
    answer: AnswerPath,
    json_file: JsonTo = None,
) -> None:
    """Explain the choice, its bottleneck, and the cheapest way to 20 % more capacity.

    Every change is simulated at the higher rate.
    """
    from catalogs.io.output_files import check_targets
    from catalogs.ui.terminal import progress_bar
    from planner.cli.screens.explain import show
    from planner.sections.full_answer import read_answer
    from planner.studies import explain as explaining

    check_targets(json_file)
    read = read_answer(answer)
    with progress_bar("explain") as tell:
        found = explaining.explain(read, tell)
    put(explaining.document(found), json_file, lambda: show(found))
