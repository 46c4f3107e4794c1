"""Exported calibrations: the same bundle on the other machine, or one line and nothing changed."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from calibration.bundles.archive import export_bundle, install_bundle
from calibration.bundles.bundle import bundle_folder, load_bundle, shipped_folder, user_folder
from calibration.bundles.engine_calibration import file_of
from calibration.bundles.files import facts_hash
from calibration.cli.main import main
from calibration.fitting.fit import fit_bundle
from calibration.operators.operators import Gemm
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from tests.calibration.invented_accelerator import gemm_rows

FILES = ("bundle.json", "arrays.npz")
H100 = parse_hardware("h100").accelerator


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A small bundle that is not the shipped one."""
    return fit_bundle({"gemm": gemm_rows(H100)}, H100, tmp_path / "mine").parent


def changed(archive: Path, **files: bytes | None) -> Path:
    """The archive with some of its files exchanged, or left out for None."""
    with tarfile.open(archive) as old:
        held = {m.name: old.extractfile(m).read() for m in old}  # type: ignore[union-attr]
    out = archive.with_name(f"changed{len(list(archive.parent.iterdir()))}.tar.gz")
    with tarfile.open(out, "w:gz") as new:
        for name, data in held.items():
            stem = Path(name).stem
            content = files.get(stem, data)
            if content is not None:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return out


@pytest.mark.parametrize("kind", ["b.tar.gz", "b.tgz", "folder"])
def test_what_is_exported_is_installed_unchanged(kind: str, own: Path, tmp_path: Path) -> None:
    out = export_bundle(str(own), tmp_path / kind)
    installed = install_bundle(out)
    assert installed == user_folder() / "h100"
    assert sorted(f.name for f in installed.iterdir()) == sorted(FILES)
    assert all((installed / name).read_bytes() == (own / name).read_bytes() for name in FILES)
    op = Gemm(64.0, 4096.0, 4096.0, "bf16")
    assert load_bundle(H100).cost(op).seconds == load_bundle(H100, own).cost(op).seconds
    assert load_bundle(H100).provenance["sources"] == load_bundle(H100, own).provenance["sources"]


def test_the_same_bundle_gives_the_same_bytes(own: Path, tmp_path: Path) -> None:
    a, b = (export_bundle(str(own), tmp_path / name / "x.tar.gz") for name in (".", "."))
    first = a.read_bytes()
    os.utime(own / "bundle.json", (1, 1))
    assert export_bundle(str(own), b).read_bytes() == first


def test_an_import_replaces_the_whole_of_the_users_bundle(own: Path, tmp_path: Path) -> None:
    install_bundle(export_bundle("h100", tmp_path / "shipped.tar.gz"))
    (user_folder() / "h100" / "stale").write_text("")
    install_bundle(own)
    assert sorted(f.name for f in (user_folder() / "h100").iterdir()) == sorted(FILES)
    assert [f.name for f in user_folder().iterdir()] == ["h100"]


def test_host_times_measured_on_a_hardware_are_no_part_of_its_bundle(own: Path, tmp_path: Path) -> None:
    """They do not hide the shipped bundle of that name, and an import does not take them away."""
    host_times = file_of("h100", "vllm")
    host_times.parent.mkdir(parents=True)
    host_times.write_text("{}")
    assert bundle_folder("h100") == shipped_folder() / "h100"
    assert export_bundle("h100", tmp_path / "shipped.tar.gz").is_file()
    install_bundle(own)
    install_bundle(own)
    assert host_times.read_text() == "{}"
    assert bundle_folder("h100") == user_folder() / "h100"


def test_damaged_and_foreign_bundles_change_nothing(own: Path, tmp_path: Path) -> None:
    archive = export_bundle(str(own), tmp_path / "b.tar.gz")
    facts = json.loads((own / "bundle.json").read_text())
    install_bundle(export_bundle("h100", tmp_path / "shipped.tar.gz"))
    before = {name: (user_folder() / "h100" / name).read_bytes() for name in FILES}

    def with_facts(**update: object) -> Path:
        document = {**facts, **update}
        return changed(archive, bundle=json.dumps(document | {"facts_sha256": facts_hash(document)}).encode())

    arrays = (own / "arrays.npz").read_bytes()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:-200])
    text = tmp_path / "text.tar.gz"
    text.write_bytes(gzip.compress(b"not a tar file"))
    cases: list[tuple[Path, str]] = [
        (changed(archive, arrays=arrays[:-1] + b"x"), "do not match the hash"),
        (cut, "cut short"),
        (text, "cut short or not an archive"),
        (tmp_path / "absent.tar.gz", "No such file"),
        (changed(archive, arrays=None), "arrays.npz missing"),
        (changed(archive, bundle=b"{"), "not valid"),
        (changed(archive, bundle=json.dumps({**facts, "hardware": "h200"}).encode()), "facts do not match the hash"),
        (with_facts(hardware="abacus"), "not in the catalog"),
        (with_facts(hardware="../../escape"), "no valid hardware name"),
        (with_facts(hardware="local"), "another machine"),
        (with_facts(schema_version=9), "not valid"),
    ]
    for path, match in cases:
        with pytest.raises(InputError, match=match) as caught:
            install_bundle(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="other hardware than requested"):
        install_bundle(archive, "h200")
    assert {name: (user_folder() / "h100" / name).read_bytes() for name in FILES} == before
    assert [f.name for f in user_folder().iterdir()] == ["h100"]


def test_a_damaged_bundle_is_not_exported(own: Path, tmp_path: Path) -> None:
    (own / "arrays.npz").write_bytes(b"x")
    with pytest.raises(InputError, match="do not match"):
        export_bundle(str(own), tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


def test_export_keeps_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="not an empty folder"):
        export_bundle("h100", tmp_path / "full")
    with pytest.raises(InputError, match=r"cannot write .*No such file"):
        export_bundle("h100", tmp_path / "absent" / "b.tar.gz")
    assert [f.name for f in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(args))
        return stopped.value.code, capsys.readouterr().err

    out = tmp_path / "l40s.tar.gz"
    assert run("export", "l40s", "--out", str(out))[0] in (0, None)
    assert run("import", "--bundle", str(out), "--json", "-")[0] in (0, None)
    assert (user_folder() / "l40s" / "bundle.json").read_bytes() == (shipped_folder() / "l40s/bundle.json").read_bytes()
    for args, match in (
        (["export", "abacus", "--out", str(out)], "no calibration bundle"),
        (["import"], "one source at a time"),
        (["import", "--bundle", str(out), "--from-package"], "one source at a time"),
        (["import", str(out)], "files without an option must follow --results"),
        (["import", "--tables", str(tmp_path), "--hw", "h100"], "operator tables need a hardware name"),
        (["import", "--results", str(out)], "cannot be read"),
    ):
        code, err = run(*args)
        assert code == 2
        assert match in err
        assert err.count("\n") == 1
