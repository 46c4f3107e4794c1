"""Write the JSON Schemas of planner/schemas and calibration/schemas: run `python tools/write_schemas.py`."""

from __future__ import annotations

import json
from pathlib import Path

from calibration.artefacts.contents import REQUEST_COLUMNS, Manifest, schema_of
from catalogs.io.output_files import write_atomically
from planner.agents.answer import AgentsAnswer
from planner.improve.document import Improvement
from planner.networks.request import NetworkRequest
from planner.networks.schema import NetworkAnswer
from planner.problem.request import PlanRequest
from planner.search.pareto_answer import FrontFile
from planner.sections.full_answer import FullAnswer

ROOT = Path(__file__).resolve().parent.parent

FOLDER = ROOT / "planner" / "schemas"

ARTEFACTS = ROOT / "calibration" / "schemas"


def schemas() -> dict[Path, str]:
    """Return the text of every schema by the file it is shipped as."""
    models = {
        "answer.schema.json": FullAnswer,
        "front.schema.json": FrontFile,
        "agents_answer.schema.json": AgentsAnswer,
        "improvement.schema.json": Improvement,
        "network_request.schema.json": NetworkRequest,
        "network_answer.schema.json": NetworkAnswer,
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    texts = {name: json.dumps(head | model.model_json_schema(), indent=1) for name, model in models.items()}
    texts["request.schema.json"] = json.dumps(head | PlanRequest.model_json_schema(), indent=2)
    artefacts = {
        "artefact_manifest.schema.json": head | Manifest.model_json_schema(),
        "artefact_requests.schema.json": schema_of("A request", REQUEST_COLUMNS),
    }
    return {
        **{FOLDER / name: f"{text}\n" for name, text in texts.items()},
        **{ARTEFACTS / name: f"{json.dumps(schema, indent=1)}\n" for name, schema in artefacts.items()},
    }


if __name__ == "__main__":
    for path, text in schemas().items():
        write_atomically(path, [text])
