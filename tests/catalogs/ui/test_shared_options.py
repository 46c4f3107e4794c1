"""What all commands share: `--version`, counted nouns, and piped lines without trailing spaces."""

from __future__ import annotations

import io
import re
from importlib import import_module
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.ui.entry_point import run_command
from catalogs.ui.installation import DISTRIBUTION
from catalogs.ui.terminal import TrimmedLines
from catalogs.ui.words import counted

APPS = {
    "plan": "planner.main",
    "simulate": "simulator.cli.main",
    "calibrate": "calibration.cli.main",
    "catalog": "catalogs.cli.main",
}


@pytest.mark.parametrize("name", APPS)
def test_every_command_prints_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(name, import_module(APPS[name]).app, ["--version"]) == 0
    assert re.fullmatch(rf"{name} {re.escape(version(DISTRIBUTION))} \(.*Python 3.*\)\n", capsys.readouterr().out)


def test_one_is_singular() -> None:
    assert [counted(n, "request") for n in (0, 1, 2, 1234)] == [
        "0 requests",
        "1 request",
        "2 requests",
        "1,234 requests",
    ]


@given(st.lists(st.text(alphabet="a \n", max_size=12), max_size=8))
def test_whatever_the_pieces_lines_end_without_spaces(pieces: list[str]) -> None:
    target = io.StringIO()
    stream = TrimmedLines(target)
    for piece in pieces:
        stream.write(piece)
    *lines, _ = "".join(pieces).split("\n")
    assert target.getvalue() == "".join(f"{line.rstrip(' ')}\n" for line in lines)


@pytest.mark.parametrize("args", [["list", "workloads"], ["list", "hardware"], ["show", "workload", "chat"]])
def test_piped_tables_have_no_trailing_spaces(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("catalog", import_module(APPS["catalog"]).app, args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines]
