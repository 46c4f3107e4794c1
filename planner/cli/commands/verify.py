"""The command `plan verify`: a measured run compared with its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import Alternative, AnswerPath, JsonTo, write_result


def verify(
    answer: AnswerPath,
    results: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Result of vllm bench serve (--save-detailed), GuideLLM, AIPerf or inference-perf."
        ),
    ],
    alternative: Alternative = 0,
    json_file: JsonTo = None,
) -> None:
    """Compare measured latencies with their predicted intervals; exit status 1 if one lies outside.

    Results of another model, length or rate are refused.
    """
    from calibration.importers.model_name import measured_model
    from calibration.importers.results import measured_run_file
    from planner.answer.schema import chosen
    from planner.cli.screens.validation import show_run
    from planner.sections.full_answer import read_answer
    from planner.validation.prediction import Prediction
    from planner.validation.verification import verify as compare

    read = read_answer(answer)
    prediction = Prediction.of(read, chosen("verify", read, alternative))
    found = compare(prediction, measured_run_file(results), measured_model(results))
    write_result(found.document(), json_file, lambda: show_run(found))
    raise typer.Exit(0 if found.holds else 1)
