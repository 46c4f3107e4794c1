"""`plan verify`: a measured run against the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    answer: Annotated[Path, typer.Argument(metavar="ANSWER.json", help="What plan --json wrote.")],
    results: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Result of vllm bench serve (--save-detailed), GuideLLM, AIPerf, inference-perf."
        ),
    ],
    alternative: Annotated[int, typer.Option(metavar="N", help="Against alternative N of the answer instead.")] = 0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="JSON to FILE, or - for stdout.")
    ] = None,
) -> None:
    """Whether each measured latency fell inside its predicted interval; exit status 1 where one did not.

    A result of another model, other lengths or another rate is refused.
    """
    from calibration.importers.model_name import measured_model
    from calibration.importers.results import measured_run_file
    from catalogs.files import check_targets, write_json
    from planner.answer_file import read_answer
    from planner.prediction import Prediction
    from planner.readable import chosen
    from planner.verification import verify as compare
    from planner.verification_screen import show_run

    check_targets(json_file)
    read = read_answer(answer)
    prediction = Prediction.of(read, chosen("verify", read, alternative))
    found = compare(prediction, measured_run_file(results), measured_model(results))
    if json_file is not None:
        write_json(found.document(), json_file)
    if json_file != "-":
        show_run(found)
    raise typer.Exit(0 if found.holds else 1)
