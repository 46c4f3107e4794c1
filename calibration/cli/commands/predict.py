"""The command `calibrate predict`: latency and memory of a model from rows of other models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.errors import InputError
from catalogs.io.output_files import check_targets, write_json
from catalogs.ui.shared_options import JsonFile

if TYPE_CHECKING:
    from calibration.whole_models.prediction import PredictionQuestion
    from calibration.whole_models.predictor import Predictor


def predict(
    model: Annotated[
        str,
        typer.Option(metavar="NAME|DIR", help="Catalog model or folder of a config.json, measured or not."),
    ],
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="summarisation, translation, question-answering or generation.")
    ] = "generation",
    batch: Annotated[int, typer.Option(metavar="N", help="Sequences that are generated together.")] = 1,
    input_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of each input; default: typical of the workload.")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens to generate; default: typical of the workload.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of calibrate models; default: the newest of yours.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Predict latency and peak memory of a model from rows of calibrate models, with the error on unseen models."""
    check_targets(json_file)
    from calibration.whole_models import prediction, screen

    asked = prediction.question(model, workload, batch, input_tokens, output_tokens)
    folder = _last_session() if rows is None else rows
    machine = prediction.session_rates(folder)
    found = prediction.predict(asked, _predictor(folder, asked), machine)
    if json_file != "-":
        screen.show_prediction(found, folder)
    if json_file is not None:
        write_json(prediction.document(found, folder), json_file)


def _last_session() -> Path:
    """Return the folder of the newest session of whole models.

    Raises:
        InputError: If there is none.
    """
    from calibration.profile.local_run import last_folder
    from calibration.whole_models.collect import FOLDER_PREFIX

    folder = last_folder(FOLDER_PREFIX)
    if folder is None:
        rule = "no whole models were measured on this machine"
        raise InputError(rule, hint="run `calibrate models --budget 15m`, or give --rows DIR")
    return folder


def _predictor(folder: Path, asked: PredictionQuestion) -> Predictor:
    """Return the predictor of a folder for a model; where there is none yet, the rows are studied and it is written.

    Raises:
        InputError: If the rows cannot be read, are too few, or are of one model only.
    """
    from calibration.whole_models import predictor, table
    from calibration.whole_models.prediction import scheme
    from calibration.whole_models.study import study
    from catalogs.ui.progress import status_line

    rows = table.read_rows(folder)
    by = scheme(rows, asked)
    try:
        return predictor.load(folder, by)
    except predictor.NoPredictorError:
        typer.echo(f"{folder}: the estimators are compared once on held-out rows, for about a minute", err=True)
    with status_line("comparing the estimators"):
        found = study(rows)
    try:
        predictor.save(found, folder)
    except InputError as error:
        typer.echo(f"the comparison is not kept: {error}", err=True)
    return predictor.refitted(predictor.document(found), found.used, by)
