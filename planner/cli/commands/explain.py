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
    from catalogs.ui.progress import progress_bar
    from planner.cli.screens.studies import show_explanation
    from planner.networks.answer_file import read_any_answer
    from planner.networks.schema import NetworkAnswer
    from planner.search.workers import ProcessPool, usable_cores
    from planner.studies import explain as explaining

    read = read_any_answer(answer)
    with progress_bar("explain") as progress:
        if isinstance(read, NetworkAnswer):
            from planner.networks.studies.explain import explain_network

            found = explain_network(read, progress)
        else:
            found = explaining.explain(read, progress, ProcessPool(usable_cores()))
    write_result(explaining.document(found), json_file, lambda: show_explanation(found))
