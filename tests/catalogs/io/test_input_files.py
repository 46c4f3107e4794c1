"""The nearest existing file for a path that leads to none."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogs.io.input_files import nearest_file


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("answr.json", "answer.json"),
        ("ANSWER.JSON", "answer.json"),
        ("answer.json", None),  # it exists
        ("folder.jso", None),  # a folder is no file
        ("answer.jso", "answer.json"),  # another kind of file with almost the same name
        ("answers.csv", None),
        ("zzz.json", None),
        ("nowhere/answer.json", None),
        ("answer\0.json", "answer.json"),  # no file can have this name
        ("", None),
    ],
)
def test_the_nearest_file_has_a_similar_name(typed: str, nearest: str | None, tmp_path: Path) -> None:
    (tmp_path / "answer.json").touch()
    (tmp_path / "folder.json").mkdir()
    found = nearest_file(tmp_path / typed)
    assert found == (None if nearest is None else str(tmp_path / nearest))
