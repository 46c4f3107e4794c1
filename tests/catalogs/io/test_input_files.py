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


def test_a_file_that_cannot_be_meant_is_passed_over(tmp_path: Path) -> None:
    for name in ("answer.json", "answers.json", "answer-2.json"):
        (tmp_path / name).touch()
    tried = list[str]()

    def fits(path: Path) -> bool:
        tried.append(path.name)
        return path.name == "answer-2.json"

    assert nearest_file(tmp_path / "answr.json", fits) == str(tmp_path / "answer-2.json")
    assert tried == ["answer.json", "answers.json", "answer-2.json"]
    assert nearest_file(tmp_path / "answr.json", lambda _: False) is None
