"""The container file names what exists, and what it starts works without rights on a read-only file system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.matrix"])
def test_the_container_file_copies_what_exists_and_runs_as_a_plain_user(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M) for word in line.split()[:-1]]
    assert {"catalogs", "calibration", "simulator", "planner", "pyproject.toml"} <= set(copied)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{path}" for path in copied} <= set(kept)
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] == "10001:10001"


@contextmanager
def served(command: list[str], environment: dict[str, str] | None = None) -> Iterator[httpx.Client]:
    """Run a server and yield a client of it, which has the token."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []  # those of the engine, and then that of the server
            while not (port := re.search(r"plan serve: http://[^ ]*:(\d+)/", "".join(lines[-1:]))):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port[1]}", headers=bearer, timeout=60) as client:
                yield client
        finally:
            process.terminate()


def check_that_it_plans(client: httpx.Client) -> None:
    until = time.monotonic() + 60
    while client.get("/readyz").status_code == 503 and time.monotonic() < until:
        time.sleep(0.05)
    assert client.get("/readyz").json()["status"] == "ready"
    job, _ = answered(client, "plans", SMALL)
    assert job["verdict"] == "yes"
    assert client.get(f"/api/v1/jobs/{job['id']}/result.html").status_code == 200


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
    with served(whole, environment) as client:
        check_that_it_plans(client)


@pytest.mark.slow
def test_the_image_plans_as_a_plain_user_on_a_read_only_root(tmp_path: Path) -> None:
    image, run = os.environ.get("CONTAINER_IMAGE"), os.environ.get("CONTAINER_RUN", "docker run").split()
    if image is None:
        pytest.skip("CONTAINER_IMAGE names no image; docs/serve.md builds one")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)  # pytest's folders are for one user, and a mounted file keeps its own rights
    confined = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "host"]
    mounted = ["-v", f"{token}:/run/secrets/token:ro"]  # /data is a volume of its own, which ends with the container
    probe = "import os; print(os.getuid(), os.access('/', os.W_OK), os.access('/opt/planner', os.W_OK))"
    rights = [*run, *confined, "--entrypoint", "python", image, "-c", probe]
    assert subprocess.run(rights, capture_output=True, text=True, check=True).stdout.split() == [
        "10001",
        "False",
        "False",
    ]
    with served([*run, *confined, *mounted, image, "--token-file", "/run/secrets/token", "--port", "0"]) as client:
        check_that_it_plans(client)
