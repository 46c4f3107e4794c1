"""The container file names what exists, and what it starts works without rights on a read-only file system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.planner.web.running_server import SMALL, answered

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "0123456789abcdef0123456789abcdef"
#: The root becomes read-only but for the data and a temporary folder, and the process loses every capability.
CONFINED = """
set -e
mount --bind / / || true
mount --bind "$DATA" "$DATA"
mount -t tmpfs tmpfs /mnt && chmod 1777 /mnt
mount -o remount,ro,bind /
mount -o remount,rw,bind "$DATA"
if touch "$DATA/../written" 2> /dev/null; then echo "the root is writable"; exit 1; fi
cd "$DATA"
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def test_the_container_file_copies_what_exists_and_runs_as_a_plain_user() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for word in line.split()[:-1]]
    assert {"catalogs", "calibration", "simulator", "planner", "pyproject.toml"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{name}" for name in copied} <= set(kept)
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] == "10001:10001"


@pytest.mark.slow
def test_the_server_plans_without_rights_on_a_read_only_file_system(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this process may not make a mount namespace")
    data, token = tmp_path / "data", tmp_path / "token"
    data.mkdir()
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "planner.main", "serve", "--host", "0.0.0.0", "--port", "0"]
    environment = {"PATH": os.environ["PATH"], "DATA": str(data), "HOME": str(data), "XDG_DATA_HOME": str(data),
                   "TMPDIR": "/mnt", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}  # fmt: skip
    whole = ["unshare", "--mount", "bash", "-c", CONFINED, "confined", *command, "--token-file", str(token)]
    with subprocess.Popen(whole, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            port = re.search(r":(\d+)/", line)
            assert port, line + process.stderr.read()
            time.sleep(0.2)
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port[1]}", headers=bearer, timeout=60) as client:
                until = time.monotonic() + 60
                while client.get("/readyz").status_code == 503 and time.monotonic() < until:
                    time.sleep(0.05)
                assert client.get("/readyz").json()["status"] == "ready"
                job, _ = answered(client, "plans", SMALL)
                assert job["verdict"] == "yes"
        finally:
            process.terminate()
