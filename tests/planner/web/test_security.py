"""What the server refuses: other hosts, other origins, missing tokens, large bodies; and the headers of responses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from catalogs.errors import InputError
from planner.web.app import create_app
from planner.web.security import MOST_BODY
from planner.web.settings import ServeFile, ServerSettings, read_serve_file

TOKEN = "0123456789abcdef0123456789abcdef"
HERE = "http://127.0.0.1:8000"
QUESTION = {"model": "llama3.1-8b", "hardware": "h100x8", "slo": ["p99=2s"]}


def opened(folder: Path, token: str | None = None, host: str = "127.0.0.1", **keys: object) -> TestClient:
    file = None
    if token is not None:
        file = folder / "token"
        file.write_text(f"{token}\n")
    store = f"sqlite:///{folder / 'jobs.sqlite'}"
    app = create_app(ServerSettings(host, store=store, token_file=file, file=ServeFile.model_validate(keys)))
    return TestClient(app, base_url=HERE, follow_redirects=False)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return opened(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return opened(tmp_path_factory.mktemp("guarded"), TOKEN, "0.0.0.0", hosts=("planner.example",))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "", "127.0.0.1@evil.example",
     "evil.example:8000", "[::ffff:127.0.0.1", "169.254.169.254", "localhost/../x", "127.0.0.1 evil", "0x7f000001"],
)  # fmt: skip
def test_a_host_of_another_name_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/healthz", "/api/v1/jobs", "/static/css/site.css"):
        found = client.get(path, headers={"Host": host})
        assert found.status_code == 400, path
        assert found.json()["title"] == "Unknown host"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "LOCALHOST:1", "[::1]:8000"])
def test_a_host_of_this_machine_is_answered(client: TestClient, host: str) -> None:
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://127.0.0.1:8000.evil.example"},
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": HERE},
    ],
)
def test_a_page_of_another_origin_changes_nothing(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/api/v1/question"), ("POST", "/api/v1/uploads"), ("DELETE", "/api/v1/jobs/x")):
        assert client.request(method, path, headers=headers).status_code == 403
    assert client.get("/api/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("headers", [{}, {"Origin": HERE}, {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}])
def test_the_own_page_and_programs_may_ask(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/api/v1/question", json=QUESTION, headers=headers).status_code == 200


def test_a_form_of_another_page_is_no_json(client: TestClient) -> None:
    plain = {"Content-Type": "text/plain"}
    found = client.post("/api/v1/question", content='{"model": "llama3.1-8b"}', headers=plain)
    assert found.status_code == 422


def test_every_response_has_the_headers_that_confine_it(client: TestClient) -> None:
    for path in ("/healthz", "/api/v1/jobs", "/api/v1/jobs/none", "/static/css/site.css", "/nowhere"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"], path
        assert "'unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_large_body_is_refused_before_it_is_read(client: TestClient) -> None:
    body = b'{"model": "' + b"a" * MOST_BODY + b'"}'
    json = {"Content-Type": "application/json"}
    found = client.post("/api/v1/question", content=body, headers=json)
    assert found.status_code == 413
    chunks = (body[i : i + 65536] for i in range(0, len(body), 65536))  # without a Content-Length
    assert client.post("/api/v1/question", content=chunks, headers=json).status_code == 413
    announced = client.post("/api/v1/uploads", content=b"", headers={"Content-Length": str(1 << 30)})
    assert announced.status_code == 413


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 400, "0x10"])
def test_a_wrong_length_is_refused(client: TestClient, length: str) -> None:
    found = client.post("/api/v1/question", content=b"{}", headers={"Content-Length": length})
    assert found.status_code == 413


def test_deep_and_odd_json_is_refused_without_a_defect(client: TestClient) -> None:
    json = {"Content-Type": "application/json"}
    bodies = [b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"{", b"\xff", b'{"seed": 1e999}', b'{"seed": NaN}',
              b'{"seed": ' + b"9" * 5000 + b"}", b'{"model": "\\ud800"}', b'{"slo": {"a": [1]}}', b"[]",
              b"null"]  # fmt: skip
    for path in ("/api/v1/question", "/api/v1/plans", "/api/v1/simulations", "/api/v1/fronts", "/api/v1/whatifs"):
        for body in bodies:
            found = client.post(path, content=body, headers=json)
            assert found.status_code in (400, 422), (path, body[:40], found.text[:200])
            assert found.headers["content-type"] == "application/problem+json"


def test_a_yaml_bomb_is_refused(client: TestClient) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    sent = client.post("/api/v1/uploads", files={"file": ("bomb.yaml", bomb.encode())}).json()
    found = client.post("/api/v1/simulations", json={"deployment": {"model": "llama3.1-8b", "hardware": "h100"},
                                                    "workload": sent["upload"]})  # fmt: skip
    assert found.status_code == 422
    assert "values, counting what aliases stand for" in found.json()["detail"]
    assert str(Path.home()) not in found.text
    query = client.get("/api/v1/question", params={"model": "m", "hardware": "h100", "slo": "p99=1s", "fixed.x": bomb})
    assert query.status_code == 422


def test_names_with_markup_come_back_as_data(client: TestClient) -> None:
    name = "<script>alert(1)</script>"
    found = client.post("/api/v1/question", json=QUESTION | {"model": name})
    assert found.headers["content-type"] == "application/problem+json" or name in found.json()["question"]["model"]
    sent = client.post("/api/v1/uploads", files={"file": (f"{name}.csv", b"a,b\n1,2\n")}).json()
    assert "<" not in sent["name"]


# ---- the token


def test_a_server_for_other_machines_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a server that other machines reach needs a token"):
        opened(tmp_path, None, "0.0.0.0")
    with pytest.raises(InputError, match="at least 16"):
        opened(tmp_path, "short", "0.0.0.0")


def test_without_the_token_nothing_is_answered(guarded: TestClient) -> None:
    for path in ("/api/v1/jobs", "/metrics", "/openapi.json", "/api/v1/question", "/nowhere"):
        found = guarded.get(path)
        assert found.status_code == 401, path
        assert found.headers["www-authenticate"] == "Bearer"
    assert guarded.post("/api/v1/plans", json=QUESTION).status_code == 401
    assert guarded.get("/api/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert guarded.get("/api/v1/jobs", headers={"Authorization": "Bearer ü".encode()}).status_code == 401
    assert guarded.get("/healthz").status_code == 200


def test_with_the_token_everything_is(guarded: TestClient) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/v1/jobs", headers=bearer).status_code == 200
    assert guarded.get("/api/v1/jobs", headers=bearer | {"Host": "planner.example"}).status_code == 200


def test_a_browser_exchanges_the_token_for_a_cookie(guarded: TestClient) -> None:
    page = guarded.get("/plan?model=x", headers={"Accept": "text/html"})
    assert page.status_code == 401
    assert "<form" in page.text
    wrong = guarded.post("/login", data={"token": "guess", "next": '"><script>'})
    assert wrong.status_code == 401
    assert "<script>" not in wrong.text
    done = guarded.post("/login", data={"token": TOKEN, "next": "//evil.example"})
    assert done.status_code == 303
    assert done.headers["location"] == "/"
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/api/v1/jobs").status_code == 200  # the client keeps the cookie
    guarded.cookies.clear()
    evil = guarded.post("/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"})
    assert evil.status_code == 403


# ---- uploads and users


def test_an_upload_has_the_name_of_its_content_and_no_path(client: TestClient) -> None:
    content = b"arrival_s,input_tokens,output_tokens\n0,1,1\n"
    for name in ("../../../etc/passwd", "/etc/cron.d/x", "..\\..\\x", "a/b/c.csv", "\0", ".", "", "con\r\nX: y.csv"):
        found = client.post("/api/v1/uploads", files={"file": (name or " ", content)})
        assert found.status_code in (201, 422), name
        if found.status_code == 201:
            assert found.json()["upload"] == f"upload:{hashlib.sha256(content).hexdigest()}"
            assert "/" not in found.json()["name"]
            assert "\\" not in found.json()["name"]


def test_users_see_only_their_own_jobs_and_uploads(tmp_path: Path) -> None:
    shared = opened(tmp_path, owner_header="X-User", max_jobs_per_owner=2, max_queued=9)
    ann, bob = {"X-User": "ann"}, {"X-User": "bob"}
    job = shared.post("/api/v1/plans", json=QUESTION, headers=ann).json()
    assert shared.get(f"/api/v1/jobs/{job['id']}", headers=ann).status_code == 200
    for path in ("", "/events", "/result", "/files.zip", "/result.csv"):
        assert shared.get(f"/api/v1/jobs/{job['id']}{path}", headers=bob).status_code == 404
    assert shared.delete(f"/api/v1/jobs/{job['id']}", headers=bob).status_code == 404
    assert shared.get("/api/v1/jobs", headers=bob).json()["items"] == []
    upload = shared.post("/api/v1/uploads", files={"file": ("t.csv", b"a\n1\n")}, headers=ann).json()["upload"]
    stolen = shared.post("/api/v1/question", json=QUESTION | {"workload": upload}, headers=bob)
    assert stolen.json()["rule"] == "no such upload"
    assert shared.post("/api/v1/plans", json=QUESTION | {"seed": 1}, headers=ann).status_code == 202
    refused = shared.post("/api/v1/plans", json=QUESTION | {"seed": 2}, headers=ann)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert shared.post("/api/v1/plans", json=QUESTION, headers=bob).status_code == 202  # his own, not hers
    assert shared.get("/api/v1/jobs", headers={}).status_code == 401  # the proxy names no user


def test_the_file_of_settings_is_strict(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("hosts: [planner.example]\nowner_header: X-User\nkeep_days: 7\n")
    assert read_serve_file(file) == ServeFile(hosts=("planner.example",), owner_header="X-User", keep_days=7.0)
    file.write_text("keep_dys: 7\n")
    with pytest.raises(InputError, match="nearest valid choice: keep_days"):
        read_serve_file(file)
    file.write_text("max_queued: 0\n")
    with pytest.raises(InputError, match="max_queued"):
        read_serve_file(file)


def test_an_upload_that_does_not_end_is_refused_on_the_way(tmp_path: Path) -> None:
    small = opened(tmp_path, max_upload_mib=1)

    def endless() -> Iterator[bytes]:  # no Content-Length: the size shows only as it arrives
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="t.csv"\r\n\r\n'
        for _ in range(4):
            yield b"0" * (1 << 20)

    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert small.post("/api/v1/uploads", content=endless(), headers=kind).status_code == 413
    whole = small.post("/api/v1/uploads", files={"file": ("t.csv", b"0" * (1 << 20) + b"1")})
    assert whole.status_code in (413, 422)
    assert small.post("/api/v1/uploads", files={"file": ("t.csv", b"0" * (1 << 20))}).status_code == 201
    rest = opened(tmp_path, max_uploads_mib=1).post("/api/v1/uploads", files={"file": ("u.csv", b"1")})
    assert "all uploads together" in rest.json()["rule"]
