"""The snippets of docs/http-api.md run against a real server, as a reader would run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .running_server import RunningServer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "http-api.md"


def snippet(language: str) -> str:
    """Return the code of one language on the page."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def api(server: RunningServer) -> str:
    return f"{server.url}/api/v1"


def run(command: list[str], api: str) -> str:
    """Run a command that calls the API and return what it prints."""
    done = subprocess.run(
        command, env=os.environ | {"PLAN_API": api}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python(api: str) -> None:
    lines = run([sys.executable, "-c", snippet("python")], api).splitlines()
    assert re.fullmatch(r"one step takes \d+\.\d ms", lines[0])
    assert lines[1].startswith("yes ")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(api: str) -> None:
    text, decoder, found = run(["bash", "-euc", snippet("bash")], api), json.JSONDecoder(), []
    while text.strip():
        document, end = decoder.raw_decode(text.lstrip())
        found.append(document)
        text = text.lstrip()[end:]
    models, guess, graph = found
    assert models["items"]
    assert guess["gpus"] >= 1
    assert graph["nodes"]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_javascript(api: str, tmp_path: Path) -> None:
    file = tmp_path / "snippet.mjs"
    file.write_text(snippet("javascript"), encoding="utf-8")
    found = re.fullmatch(r"(\d+) nodes, (\S+) ms of (\S+) ms\n", run(["node", str(file)], api))
    assert found is not None
    assert found[2] == found[3]
