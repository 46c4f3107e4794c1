"""The faults of a deployment.yaml, each at its line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from planner.web.documents.deployment_text import checked_text
from planner.web.store.database import Database
from planner.web.store.uploads import UploadStore
from planner.web.uploads import Uploads
from tests.planner.web.own_model import CONFIG

SMALL = "model: llama3.1-8b\nhardware: h100\n"

GOOD = "model: llama3.1-8b\nhardware: h100x2\ntensor_parallel: 2\n"


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(UploadStore(Database(f"sqlite:///{tmp_path / 'jobs.sqlite'}")), tmp_path, 10**6, 10**7)


def test_a_good_text_has_every_default_filled_in(uploads: Uploads) -> None:
    found = checked_text(GOOD, uploads, "")
    assert found["faults"] == []
    assert found["deployment"] == {"model": "llama3.1-8b", "hardware": "h100x2", "tensor_parallel": 2}
    assert found["resolved"] is not None
    assert found["resolved"][0]["weight_dtype"] == "bf16"
    assert found["resolved"][0]["max_num_seqs"] > 0


@pytest.mark.parametrize(
    ("text", "line", "key", "says", "nearest"),
    [
        (f"{SMALL}\n# note\ntensor_paralel: 2\n", 5, "tensor_paralel", "unknown key", "tensor_parallel"),
        ("model: llama3.1-8b\nhardware: h100\nreplicas: two\n", 3, "replicas", "valid integer", None),
        (f"{SMALL}lora:\n  adapters: 2\n  max_lora: 1\n", 5, "lora.max_lora", "unknown key", "max_loras"),
        ("model: llama3.1-8b\nhardware: h100x9\n", 2, "hardware", "h100", None),
        ("hardware: h100\nmodel: lama3.1-8b\n", 2, "model", "model", "llama3.1-8b"),
        ("model: llama3.1-8b\n", 1, "hardware", "missing", None),
        ("model: llama3.1-8b\nhardware: h100\nreplicas: [1\n", 4, "", "not valid YAML", None),
        ("- a\n- b\n", 1, "", "key: value pairs", None),
        ("", 1, "", "key: value pairs", None),
        ("model: /etc/passwd\nhardware: h100\n", 1, "model", "", None),
        ("model: llama3.1-8b\nhardware: h100\nhardware: h200\n", 3, "", "written twice", None),
    ],
)  # fmt: skip
def test_each_fault_is_at_its_line(
    uploads: Uploads, text: str, line: int, key: str, says: str, nearest: str | None
) -> None:
    found = checked_text(text, uploads, "")
    (fault,) = found["faults"]
    assert (fault["line"], fault["key"]) == (line, key), fault
    assert says in fault["rule"]
    assert nearest is None or fault["nearest"] == nearest
    assert found["deployment"] is None


def test_several_faults_are_listed_together(uploads: Uploads) -> None:
    text = "model: llama3.1-8b\nhardware: h100\nreplicas: 0\nblok_size: 16\ngpu_memory_utilization: 2\n"
    found = checked_text(text, uploads, "")
    assert [fault["line"] for fault in found["faults"]] == [3, 4, 5]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "x: " + "[" * 10_000,
        "a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]",
        "? [a]\n: b",
        "\x00",
        "a: \ud800",
        "1: 2\n~: 3",
    ],
)
def test_hostile_texts_have_faults_and_no_errors(uploads: Uploads, text: str) -> None:
    faults: list[Any] = list(checked_text(text, uploads, "")["faults"])
    assert faults
    assert all(fault["rule"].isprintable() for fault in faults)


def test_a_text_may_name_an_uploaded_model(uploads: Uploads) -> None:
    sent = uploads.receive(io.BytesIO(json.dumps(CONFIG).encode()), "config.json", "me")
    name = f"upload:{sent.hash}"
    found = checked_text(f"model: {name}\nhardware: l40s\n", uploads, "me")
    assert found["faults"] == []
    assert found["deployment"] == {"model": name, "hardware": "l40s"}
    assert str(uploads.folder) not in json.dumps(found)


def test_a_fault_of_an_uploaded_model_is_at_its_line_and_names_the_file(uploads: Uploads) -> None:
    sent = uploads.receive(io.BytesIO(b'{"model_type": "unheard-of"}'), "mine.json", "me")
    (fault,) = checked_text(f"hardware: l40s\nmodel: upload:{sent.hash}\n", uploads, "me")["faults"]
    assert (fault["line"], fault["key"]) == (2, "model")
    assert "mine.json" in json.dumps(fault)
    assert str(uploads.folder) not in json.dumps(fault)


def test_a_text_names_only_uploads_of_its_own_user(uploads: Uploads) -> None:
    sent = uploads.receive(io.BytesIO(json.dumps(CONFIG).encode()), "config.json", "me")
    (fault,) = checked_text(f"hardware: l40s\nmodel: upload:{sent.hash}\n", uploads, "you")["faults"]
    assert (fault["line"], fault["rule"]) == (2, "no such upload")
