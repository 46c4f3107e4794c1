"""`plan explain`: why this plan."""

from __future__ import annotations

from planner.commands.options import AnswerPath, JsonTo
from planner.commands.output import put


def explain(
    answer: AnswerPath,
    json_file: JsonTo = None,
) -> None:
    """Why this plan and not another, what binds it, and the cheapest change that buys 20 % more capacity.

    Every change is simulated at the higher rate.
    """
    from catalogs.files import check_targets
    from planner import explain as explaining
    from planner.answer_file import read_answer
    from planner.explain_screen import show
    from planner.progress import telling

    check_targets(json_file)
    read = read_answer(answer)
    with telling("explain") as tell:
        found = explaining.explain(read, tell)
    put(explaining.document(found), json_file, lambda: show(found))
