"""The command `plan explain`: the reasons for a recommendation."""

from __future__ import annotations

from planner.cli.options import AnswerPath, JsonTo, write_result


def explain(
    answer: AnswerPath,
    json_file: JsonTo = None,
) -> None:
    """Explain the choice, its bottleneck, and the cheapest way to 20 % more capacity.

    Every change is simulated at the higher rate.
    """
    from catalogs.ui.terminal import progress_bar
    from planner.cli.screens.studies import show_explanation
    from planner.sections.full_answer import read_answer
    from planner.studies import explain as explaining

    read = read_answer(answer)
    with progress_bar("explain") as progress:
        found = explaining.explain(read, progress)
    write_result(explaining.document(found), json_file, lambda: show_explanation(found))
