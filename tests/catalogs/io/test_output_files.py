"""Output files and folders are there completely or not at all: full disks, links, permissions, several writers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from catalogs.errors import InputError, OutputError
from catalogs.io.output_files import atomic_file, atomic_folder, check_targets, write_atomically, write_json
from tests.full_disk import files_end_at, small_disk

ROOT = Path(__file__).resolve().parents[3]
LONG = "x" * 5000

#: A user identifier without rights.
NOBODY = 65534


def write_bytes(path: Path) -> None:
    with atomic_file(path) as part:
        part.write_bytes(LONG.encode())


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_atomically(path, [LONG[:2500], LONG[2500:]]),
    "json": lambda path: write_json({"text": LONG}, str(path)),
    "bytes": write_bytes,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("n_bytes", [0, 1, 4096, 4999])
def test_a_full_disk_leaves_the_old_file(writer: str, n_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with files_end_at(n_bytes), pytest.raises(InputError, match=r"cannot write .*File too large"):
        WRITERS[writer](path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_file_system_leaves_the_old_file(writer: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8192) as disk:
        path = disk / "out"
        path.write_text("before")
        with pytest.raises(OutputError, match="No space left on device"):
            WRITERS[writer](path)
        assert path.read_text() == "before"
        assert list(disk.iterdir()) == [path]


def test_a_full_device_is_one_line() -> None:
    with pytest.raises(OutputError, match=r"cannot write /dev/full: No space left on device"):
        write_atomically(Path("/dev/full"), [LONG])


def test_a_path_that_is_no_folder_is_an_error_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write") as refused:
        write_atomically(tmp_path / "file" / "out", [LONG])
    assert not isinstance(refused.value, OutputError)


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "a").write_text("before")

    def write(replace: bool) -> None:
        with atomic_folder(target, replace=replace) as part:
            (part / "a").write_text("after")
            (part / "b").write_text(LONG)

    for replace in (False, True):
        with files_end_at(100), pytest.raises(InputError, match=r"cannot write .*: File too large"):
            write(replace)
        assert [(f.name, f.read_text()) for f in target.iterdir()] == [("a", "before")]
        assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_leaves_the_old_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")

    def write_file() -> None:
        with atomic_file(tmp_path / "file") as part:
            part.write_text("half")
            raise KeyboardInterrupt

    def write_folder() -> None:
        with atomic_folder(tmp_path / "folder") as part:
            (part / "a").write_text("half")
            raise KeyboardInterrupt

    for write in (write_file, write_folder):
        with pytest.raises(KeyboardInterrupt):
            write()
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("file", "before")]


def test_a_link_and_the_permissions_of_a_file_stay(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", ["after"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "after"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_atomically(path, ["text"])
    assert path.read_text() == "text"


def test_a_read_only_file_is_refused_before_long_work() -> None:
    """Root may write read-only files, so a child process of another user tries."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "plan.json"
        path.write_text("{}")
        path.chmod(0o444)
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:
                    os.setuid(NOBODY)
                check_targets(str(path))
                os._exit(1)
            except InputError as error:
                os._exit(0 if "the file is read-only" in str(error) else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("json_target", "html", "nearest"),
    [
        (None, "plan.json", "plan.html"),
        (None, "a.b/page.csv", "a.b/page.html"),
        ("plan.html", None, "plan.json"),
        ("plan.yaml", None, "plan.json"),
    ],
)
def test_a_name_that_ends_like_another_format_is_refused(
    json_target: str | None, html: str | None, nearest: str
) -> None:
    with pytest.raises(InputError, match="is that of") as found:
        check_targets(json_target, html=None if html is None else Path(html))
    assert found.value.nearest == nearest


def test_other_endings_are_allowed(tmp_path: Path) -> None:
    check_targets(str(tmp_path / "answer"), html=tmp_path / "page.xhtml")
    check_targets("-", html=tmp_path / "page.HTML")
    check_targets(None, tmp_path / "deployment.json")


def test_a_file_in_the_folder_that_is_named_has_the_ending_of_its_format(tmp_path: Path) -> None:
    for json_target, html, name in ((str(tmp_path), None, "out.json"), (None, tmp_path, "page.html")):
        with pytest.raises(InputError, match="it is a folder") as found:
            check_targets(json_target, html=html)
        assert found.value.nearest == str(tmp_path / name)
    with pytest.raises(InputError, match=r"it is a folder.*hint: give the name of a file in it"):
        check_targets(None, tmp_path)


WRITER = """
import sys
from pathlib import Path
from catalogs.io.output_files import write_atomically
while True:
    write_atomically(Path(sys.argv[1]), [sys.argv[2]] * 20000)
"""


def test_several_writers_and_a_kill_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_atomically(path, ["c"] * 20000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    try:
        seen = set()
        while not {"a", "b"} <= seen:  # both have written
            text = path.read_text()
            assert len(text) == 20000
            (letter,) = set(text)
            seen.add(letter)
            assert all(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    text = path.read_text()
    assert (len(text), len(set(text))) == (20000, 1)


#: Functions that write a file in place: into a folder that is not yet at its place, to a device, a pipe or a log.
IN_PLACE = {
    "calibration/artefacts/recording.py:_write",
    "calibration/artefacts/recording.py:add_input_text",
    "calibration/artefacts/recording.py:add_table",
    "calibration/artefacts/recording.py:finish",
    "calibration/bundles/archive.py:_write_archive",
    "calibration/bundles/archive.py:install_bundle",
    "calibration/profile/kernels/collective.py:_measured",
    "calibration/profile/kernels/collective_rank.py:main",
    "calibration/serve/tiny_model.py:write_tiny_model",
    "calibration/whole_models/memory.py:peak_on_cpu",
    "catalogs/ui/crash_report.py:write_crash_report",  # after a crash, with as little code as possible
    "planner/deploy/files.py:write_folder",
    "planner/web/api/results.py:_parquet",  # in memory
    "planner/web/jobs/kinds/deployments.py:run",  # in the private folder of one job
    "planner/web/jobs/kinds/simulations.py:run",
    "planner/web/mcp/tools.py:_plan",  # in a temporary folder
    "planner/web/mcp/tools.py:_simulate",
}


def writes_in_place() -> set[str]:
    """The functions of the packages that call a writer of pathlib, or of pandas with something else than `part`."""
    found = set()
    packages = ("catalogs", "calibration", "simulator", "planner")
    for file in (f for package in packages for f in (ROOT / package).rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                first, name = call.args[0] if call.args else None, call.func.attr
                is_part = first is None or any(isinstance(n, ast.Name) and n.id == "part" for n in ast.walk(first))
                if name in ("write_text", "write_bytes") or (name in ("to_csv", "to_parquet") and not is_part):
                    found.add(f"{file.relative_to(ROOT)}:{function.name}")
    return found


def test_every_output_file_is_written_atomically() -> None:
    assert writes_in_place() == IN_PLACE, "use write_atomically, atomic_file or atomic_folder"
