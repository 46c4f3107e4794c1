"""Write the JSON Schemas of planner/schemas: run `python tools/write_schemas.py` after a change of a block."""

from __future__ import annotations

import json
from pathlib import Path

from catalogs.io.output_files import write_atomically
from planner.networks.request import NetworkRequest
from planner.networks.schema import NetworkAnswer
from planner.search.pareto_search import FrontFile
from planner.sections.full_answer import FullAnswer

FOLDER = Path(__file__).resolve().parent.parent / "planner" / "schemas"


def schemas() -> dict[Path, str]:
    """Return the text of every schema by the file it is shipped as."""
    models = {
        "answer.schema.json": FullAnswer,
        "front.schema.json": FrontFile,
        "network_request.schema.json": NetworkRequest,
        "network_answer.schema.json": NetworkAnswer,
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    texts = {name: json.dumps(head | model.model_json_schema(), indent=1) for name, model in models.items()}
    return {FOLDER / name: f"{text}\n" for name, text in texts.items()}


if __name__ == "__main__":
    for path, text in schemas().items():
        write_atomically(path, [text])
