"""The command `plan drift`: a running server compared with its plan."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import Alternative, JsonTo, LanguageModelAnswerPath, language_model_answer, write_result


def drift(
    answer: LanguageModelAnswerPath,
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="URL of a vLLM server, or of a Prometheus server that scrapes it.")
    ],
    seconds: Annotated[float, typer.Option(help="Length of the observed interval, seconds.")] = 60.0,
    served: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model on the server, if it differs from the plan's.")
    ] = None,
    alternative: Alternative = 0,
    json_file: JsonTo = None,
) -> None:
    """Compare a running server with the plan; exit status 1 if load or latencies have changed.

    The predictions are for the server's current request rate.
    """
    from catalogs.errors import InputError
    from planner.answer.answer_schema import chosen
    from planner.cli.screens.verify import show_server
    from planner.verify.drift import drift as compare
    from planner.verify.prediction import Prediction
    from planner.verify.prometheus import observe_server

    if not 1 <= seconds <= 86_400:
        raise InputError("an interval must last 1 to 86400 seconds", seconds, "60")
    read = language_model_answer(answer)
    prediction = Prediction.of(read, chosen("drift", read, alternative))
    found = compare(prediction, observe_server(prometheus, seconds, str(prediction.plan.deployment["model"]), served))
    write_result(found.document(), json_file, lambda: show_server(found))
    raise typer.Exit(0 if found.holds else 1)
