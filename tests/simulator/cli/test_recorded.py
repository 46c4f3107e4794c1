"""Simulations as artefacts: inputs travel with them, and a replay gives the same bytes, also in another root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibration.artefacts.checking import artefact_faults, read_manifest
from calibration.artefacts.contents import read_rows
from calibration.artefacts.replay import replay
from catalogs.ui.entry_point import run_command
from simulator.cli.main import app

ROOT = Path(__file__).resolve().parents[3]

DEPLOYMENT = "model: llama3.1-8b\nengine: vllm\nhardware: h100x1\n"

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def simulated(tmp_path: Path, *options: str, text: str = DEPLOYMENT) -> Path:
    (tmp_path / "d.yaml").write_text(text)
    target = tmp_path / "artefact"
    words = ["d.yaml", "--requests", "20", "--artefact", str(target), *options]
    assert run_command("simulate", app, words) == 0
    return target


def test_a_replay_gives_the_same_bytes(tmp_path: Path, capsys: Any) -> None:
    folder = simulated(tmp_path, "--workload", "chat", "--seed", "7", "--json", "out.json", "--requests-out", "out.csv")
    assert artefact_faults(folder) == []
    manifest = read_manifest(folder)
    assert manifest.seeds == {"seed": 7}
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads((folder / "results/result.json").read_text())
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 21
    assert len(read_rows(folder, "requests")) == 20
    assert "h100x1" in capsys.readouterr().out
    assert replay(folder).same


def test_models_workloads_and_own_calibrations_travel_with_the_run(tmp_path: Path) -> None:
    model = tmp_path / "models" / "mine"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    (model / "weights.safetensors").write_text("large")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + "0.5,100,10\n" * 20)
    (tmp_path / "w/load.yaml").write_text("trace: trace.csv\n")
    own = tmp_path / "home/llm-capacity-planner/calibrations/h100/engines"
    own.mkdir(parents=True)
    (own / "note.json").write_text("{}")
    folder = simulated(
        tmp_path, "--workload", "w/load.yaml", text="model: models/mine\nengine: vllm\nhardware: h100x1\n"
    )
    paths = {file.path: file.original for file in read_manifest(folder).inputs}
    assert paths["inputs/files/0/mine/config.json"] == "models/mine/config.json"
    assert "inputs/files/0/mine/weights.safetensors" not in paths
    assert {"inputs/workload/load.yaml", "inputs/workload/trace.csv"} <= set(paths)
    assert "inputs/user/llm-capacity-planner/calibrations/h100/engines/note.json" in paths
    shutil.rmtree(tmp_path / "models")
    shutil.rmtree(tmp_path / "home")
    assert replay(shutil.move(folder, tmp_path / "moved")).same


def test_other_results_are_found(tmp_path: Path) -> None:
    from tests.calibration.artefacts.test_artefacts import sealed_again

    folder = simulated(tmp_path, "--workload", "chat")
    result = folder / "results/result.json"
    result.write_text(result.read_text().replace('"n_completed": 20', '"n_completed": 21'))
    sealed_again(folder)
    found = replay(folder)
    assert not found.same
    assert found.found.files == ["results/result.json"]


def test_any_command_can_run_inside_an_artefact(tmp_path: Path, capsys: Any) -> None:
    from calibration.cli.main import app as calibrate

    (tmp_path / "d.yaml").write_text(DEPLOYMENT)
    run = ["simulate", "inputs/d.yaml", "--workload", "chat", "--requests", "5", "--json", "results/a.json"]
    words = ["artefact", "record", str(tmp_path / "a"), "--input", "d.yaml", "--", *run]
    assert run_command("calibrate", calibrate, words) == 0
    assert artefact_faults(tmp_path / "a") == []
    assert read_manifest(tmp_path / "a").wrapped
    assert replay(tmp_path / "a").same
    again = ["artefact", "record", str(tmp_path / "b"), "--input", "d.yaml", "--"]
    for more, says in ((["ls"], "plan"), (run[:-2], "wrote no results"), ([*run, "--requests", "0"], "failed")):
        assert run_command("calibrate", calibrate, [*again, *more]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["d.yaml", "--artefact", "."], "new folder"),
        (["d.yaml", "--artefact", "a", "--workload", "up.yaml"], "in the folder of its file"),
        (["d.yaml", "--artefact", "a", "--workload", "bytes.yaml"], "cannot read bytes.yaml (it is not UTF-8 text)"),
        (["bytes.yaml", "--artefact", "a"], "cannot read bytes.yaml (it is not UTF-8 text)"),
        (["none.yaml", "--artefact", "a"], "cannot read none.yaml (No such file"),
    ],
)
def test_what_cannot_be_kept_is_one_line(options: list[str], says: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "d.yaml").write_text(DEPLOYMENT)
    (tmp_path / "up.yaml").write_text("trace: ../trace.csv\n")
    (tmp_path / "bytes.yaml").write_bytes(b"trace: \xff\n")
    assert run_command("simulate", app, options) == 2
    assert says in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["bytes.yaml", "d.yaml", "up.yaml"]


def test_jobs_of_networks_have_a_table_of_their_own(tmp_path: Path) -> None:
    folder = simulated(tmp_path, text="model: sam2.1-large\nhardware: l40sx1\n")
    assert artefact_faults(folder) == []
    assert [table.name for table in read_manifest(folder).tables] == ["jobs"]
    assert replay(folder).same


#: A root with the system and Python read-only, and nothing of this user: no home, no network.
FRESH_ROOT = """
set -e
mount -t tmpfs tmpfs "$NEW"
for part in /usr /bin /lib /lib64 /etc $MORE; do
  [ -e "$part" ] || continue
  mkdir -p "$NEW$part" && mount --rbind "$part" "$NEW$part" && mount -o remount,ro,bind "$NEW$part"
done
mkdir -p "$NEW/proc" "$NEW/dev" "$NEW/tmp" "$NEW/artefact"
mount -t proc proc "$NEW/proc" || mount --rbind /proc "$NEW/proc"
mount --rbind /dev "$NEW/dev"
mount --bind "$ARTEFACT" "$NEW/artefact"
export HOME=/nowhere PATH=/usr/bin:/bin:/usr/sbin:/sbin PYTHONDONTWRITEBYTECODE=1
exec chroot "$NEW" "$@"
"""


@pytest.mark.slow
def test_an_artefact_replays_in_a_fresh_root_without_the_network(tmp_path: Path) -> None:
    probe = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("this process may not make namespaces")
    folder = simulated(tmp_path, "--workload", "chat", "--seed", "7")
    new = tmp_path / "root"
    new.mkdir()
    folders = dict.fromkeys(str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix, ROOT, *sys.path) if p)
    more = [p for p in folders if os.path.isdir(p) and not p.startswith(("/usr/", "/lib/"))]
    script = "from calibration.cli.main import main; main(['artefact', 'replay', '/artefact', '--json', '-'])"
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "bash",
            "-c",
            FRESH_ROOT,
            "fresh",
            sys.executable,
            "-c",
            script,
        ],
        env={
            "PATH": os.environ["PATH"],
            "NEW": str(new),
            "ARTEFACT": str(folder),
            "MORE": " ".join(more),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *more]),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["same_bytes"] is True
