"""Imports: an exported calibration or measured operators, installed on the server, or results of load clients.

Measured operators are tables of rows, one file for each operator family, as `calibrate profile` and `calibrate import`
write them (calibration/rows/dataset.py). They are checked against the peaks of the hardware, fitted and installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from catalogs.errors import InputError, nearest_name
from catalogs.io.json_files import check_values
from catalogs.io.yaml_files import YamlBlock, validate_as
from planner.web.jobs.kind import JobKind, JobResult, Prepared, Submission, Task
from planner.web.uploads import PREFIX, refuse_paths

if TYPE_CHECKING:
    import pandas as pd

#: Version of the form of the result.
SCHEMA_VERSION: Final = 1

#: Most files of one import. A judgement that keeps a form short.
_MOST_FILES: Final = 20

Uploads = Annotated[list[str], Field(min_length=1, max_length=_MOST_FILES)]


class ImportQuestion(YamlBlock):
    """The body of an import: an uploaded archive with a calibration, tables of operators, or results of load clients.

    Attributes:
        calibration: The archive.
        tables: Tables of measured operators, FAMILY.parquet or FAMILY.csv; they need `hardware`.
        results: Files of load clients.
        hardware: The accelerator of the calibration or the tables.
    """

    calibration: str | None = None
    tables: Uploads | None = None
    results: Uploads | None = None
    hardware: str | None = None

    @property
    def what(self) -> str:
        """Return which of the three the import is.

        Raises:
            InputError: It is none or several of them, or tables without hardware.
        """
        given = [name for name in ("calibration", "tables", "results") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError("an import has either a calibration, tables or results", hint="upload a file and name it")
        if given == ["tables"] and self.hardware is None:
            raise InputError("operator tables need the name of their hardware", None, "hardware: h100")
        return given[0]

    @property
    def files(self) -> list[str]:
        """Return the files of the import."""
        return [self.calibration] if self.calibration is not None else self.tables or self.results or []


def prepare(body: Mapping[str, Any], submission: Submission) -> Prepared:
    """Return the question of an import.

    Raises:
        InputError: A key is wrong, a file is no upload of the user, or tables do not each have their own family.
    """
    check_values(body, "the import")
    refuse_paths(body)
    question = validate_as(ImportQuestion, dict(body), "the import")
    what = question.what
    for reference in question.files:
        if not reference.startswith(PREFIX):
            raise InputError("an import must be an upload", reference, f"{PREFIX}SHA256")
    names = [submission.uploads.find(reference, submission.owner).name for reference in question.files]
    if what == "tables":
        from catalogs.hardware.catalog import parse_hardware

        parse_hardware(str(question.hardware))
        families: set[str] = set()
        for name in names:
            family = _family(name)
            if family in families:
                raise InputError(f"two tables are of the operator family {family}", name, "one file for each family")
            families.add(family)
    return Prepared(f"Import of {what} {', '.join(names)}", question.model_dump(exclude_none=True))


def run(task: Task) -> JobResult:
    """Install the calibration, or read the results."""
    question = ImportQuestion.model_validate(task.question)
    if question.calibration is not None:
        return JobResult(_installed(Path(question.calibration), question.hardware), True)
    if question.tables is not None:
        return JobResult(_fitted([Path(name) for name in question.tables], str(question.hardware), task), True)
    return JobResult(_results([Path(name) for name in question.results or []]))


def _installed(archive: Path, hardware: str | None) -> dict[str, Any]:
    from calibration.bundles.archive import install_bundle
    from calibration.bundles.files import read_bundle

    folder = install_bundle(archive, hardware)
    facts = read_bundle(folder)[0]
    return {
        "schema_version": SCHEMA_VERSION,
        "hardware": facts.hardware,
        "errors": facts.held_out,
        "notices": list(facts.notices),
    }


def _family(name: str) -> str:
    """Return the operator family that the name of a file states.

    Raises:
        InputError: The name is not that of a family, or the file is of another kind.
    """
    from calibration.rows.dataset import OPERATOR_COLUMNS

    stem, _, end = name.rpartition(".")
    if stem not in OPERATOR_COLUMNS or end not in ("parquet", "csv"):
        nearest = f"{nearest_name(stem, OPERATOR_COLUMNS) or next(iter(OPERATOR_COLUMNS))}.parquet"
        hint = f"FAMILY.parquet or FAMILY.csv; families: {', '.join(OPERATOR_COLUMNS)}"
        raise InputError("the name of a table states its operator family", name, nearest, hint=hint)
    return stem


def _rows(file: Path) -> pd.DataFrame:
    import pandas as pd

    from calibration.rows.dataset import check_rows

    try:
        rows = pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError(f"a table cannot be read ({type(error).__name__})", file.name) from None
    if "source" not in rows.columns:
        rows["source"] = file.name
    return check_rows(_family(file.name), rows)


def _fitted(files: list[Path], hardware: str, task: Task) -> dict[str, Any]:
    """Fit the rows that respect the peaks of the hardware, and install the calibration."""
    from calibration.fitting.fit import fit_bundle
    from calibration.importers.parsing import gated
    from catalogs.hardware.catalog import parse_hardware

    unit = parse_hardware(hardware).accelerator
    kept, reports = gated({_family(file.name): _rows(file) for file in files}, unit)
    task.report(0, None, "fitting", None)
    found = _installed(fit_bundle(kept, unit, task.folder / "bundle").parent, unit.name)
    dropped = [f"{family}: {r.n_rejected:,} of {r.n_in:,} rows exceed a peak" for family, r in reports.items()]
    lines = [line for line, report in zip(dropped, reports.values(), strict=True) if report.n_rejected]
    rows = {family: len(table) for family, table in kept.items()}
    return found | {"rows": rows, "notices": [*lines, *found["notices"]]}


def _results(files: list[Path]) -> dict[str, Any]:
    from calibration.cli.importing import run_document
    from calibration.importers.load_clients.results import measured_runs

    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [run_document(run) for file in files for run in measured_runs(file)],
    }


SUMMARY: Final = "Install an exported calibration or tables of measured operators, or read results of load clients."

#: `measures`: the same calibration is installed anew, because another one may have been installed since.
KIND = JobKind(
    "import",
    "imports",
    SUMMARY,
    prepare,
    run,
    lambda: ImportQuestion.model_json_schema(),
    measures=True,
    page="/calibrate",
)
