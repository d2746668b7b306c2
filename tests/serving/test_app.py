"""The server, asked as its clients do: over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import records
from servers import Server, serving, until

from fastshapley.version import __version__

pytest.importorskip("uvicorn", reason="needs the serve extra")
EXPLAIN, PREDICT, INFER = "/v1/models/people:explain", "/v1/models/people:predict", "/v2/models/people/infer"


@pytest.fixture(scope="module")
def rows(exported: Any) -> list[dict[str, Any]]:
    return records(exported.X[:20])


@pytest.fixture(scope="module")
def server(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    examples = tmp_path_factory.mktemp("rows") / "rows.csv"
    exported.X[:7].to_csv(examples, index=False)
    limits = ("--max-body", "100000", "--max-rows", "400", "--timeout", "1")
    with serving(exported.graph, f"second={exported.saved}", "--rows", examples, *limits) as running:
        yield running


@pytest.fixture(scope="module")
def locked(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text("sésame-42\n")
    with serving(exported.graph, "--token-file", secret, "--origin", "https://example.org") as running:
        yield running


def test_explanations_are_the_librarys(server: Server, exported: Any, rows: list[Any]) -> None:
    expected = exported.explainer(exported.X[:20], errors=True)
    for name in ("people", "second"):
        status, found = server.ask(f"/v1/models/{name}:explain", {"instances": rows})
        assert status == 200
        for row, explanation in enumerate(found["explanations"]):
            np.testing.assert_allclose(explanation["shap_values"], expected.values[row], atol=1e-5)
            np.testing.assert_allclose(explanation["error_std"], expected.error_std[row], atol=1e-5)
    _, alone = server.ask(EXPLAIN, rows[3])
    np.testing.assert_allclose(alone["explanations"][0]["shap_values"], expected.values[3], atol=1e-5)
    _, predicted = server.ask(PREDICT, {"instances": rows})
    np.testing.assert_allclose(predicted["predictions"], found["predictions"], atol=1e-12)


def test_many_rows_are_answered_like_few(server: Server, rows: list[Any]) -> None:
    status, found = server.ask(EXPLAIN, {"instances": rows * 15})  # more than go together, in a long body
    assert status == 200
    np.testing.assert_allclose(found["predictions"], found["predictions"][:20] * 15)
    assert len(found["explanations"]) == 300


def test_tensors(server: Server, exported: Any) -> None:
    encoded = exported.explainer.schema_.encode(exported.X[:3])[:].numpy()
    data = [None if np.isnan(value) else value for value in encoded.ravel()]
    status, found = server.ask(
        INFER, {"id": "x", "inputs": [{"name": "rows", "shape": [3, 5], "datatype": "FP64", "data": data}]}
    )
    assert status == 200
    assert (found["id"], found["model_name"]) == ("x", "people")
    values = next(output for output in found["outputs"] if output["name"] == "shap_values")
    expected = exported.explainer(exported.X[:3]).values
    np.testing.assert_allclose(np.reshape(values["data"], values["shape"]), expected, atol=1e-5)


def test_what_there_is(server: Server) -> None:
    assert server.ask("/v1/models") == (200, {"models": ["people", "second"]})
    assert server.ask("/v1/models/people") == (200, {"name": "people", "ready": True})
    assert server.ask("/v2") == (200, {"name": "fastshapley", "version": __version__, "extensions": []})
    assert server.ask("/v2/health/live") == (200, {"live": True})
    assert server.ask("/v2/health/ready") == (200, {"ready": True})
    assert server.ask("/v2/models/people/ready") == (200, {"name": "people", "ready": True})
    assert server.ask("/v2/models/people")[1]["inputs"][0]["shape"] == [-1, 5]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (EXPLAIN, b"{", 400, "the body is no JSON"),
        (EXPLAIN, b"\xff\xfe", 400, "the body is no JSON"),
        (EXPLAIN, b"", 400, "the body is no JSON"),
        (EXPLAIN, {"instances": []}, 400, "the body must be"),
        (EXPLAIN, {"instances": [{"age": 3}]}, 400, "row 0 lacks the columns"),
        (EXPLAIN, {"instances": [[1e30, 1e300, None, None, None]]}, 200, None),
        (EXPLAIN, {"instances": [[0] * 5] * 401}, 413, "there are 401 rows, and 400 are the most"),
        (EXPLAIN, b"[" * 90_000, 400, "the body is no JSON"),
        (EXPLAIN, b" " * 100_001, 413, "the body has more than 100000 bytes"),
        (INFER, {"inputs": []}, 400, "the body needs an input called rows"),
        ("/v1/models/nobody:explain", {}, 404, "there is no such model; there are ['people', 'second']"),
        ("/v1/models/people:train", {}, 405, "POST is not for this address"),
        ("/v2/health/live", {}, 405, "POST is not for this address"),
        ("/%2e%2e/%2e%2e/etc/passwd", None, 404, "there is nothing here"),
        ("/models/people.fastshap", None, 404, "there is nothing here"),
    ],
)
def test_refusals(server: Server, path: str, body: Any, status: int, message: str | None) -> None:
    got, found = server.ask(path, body)
    assert got == status
    if message is not None:
        assert found["error"].startswith(message)
        assert "Traceback" not in found["error"]


def test_numbers_that_overflow_the_network_are_refused_and_nobody_else(server: Server, rows: list[Any]) -> None:
    status, found = server.ask(EXPLAIN, {"instances": [{**rows[0], "income": -1e308, "age": 1e308}]})
    assert status in (200, 400)
    assert "NaN" not in json.dumps(found)
    assert "null" not in json.dumps(found)


def test_it_says_why_in_its_log_and_without_a_trace(server: Server) -> None:
    server.ask(EXPLAIN, {"instances": [{"age": "secret"}]})
    until(lambda: any(entry.get("status") == 400 for entry in server.log))
    entry = next(entry for entry in reversed(server.log) if entry.get("status") == 400)
    assert entry.keys() >= {"time", "level", "logger", "message", "action", "path", "milliseconds", "client"}
    assert [entry for entry in server.log if "trace" in entry] == []


def test_counters(server: Server, rows: list[Any]) -> None:
    def count(text: bytes, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    name = 'fastshapley_requests_total{action="explain",model="people",status="200"}'
    explained = 'fastshapley_rows_total{model="people"}'
    before = server.ask("/metrics")[1]
    server.ask(EXPLAIN, {"instances": rows})
    after = server.ask("/metrics")[1]
    assert count(after, name) - count(before, name) == 1
    assert count(after, explained) - count(before, explained) == 20
    server.ask("/v1/models/made-up:explain", {})
    assert b"made-up" not in server.ask("/metrics")[1]


def test_the_page_and_what_it_needs(server: Server, exported: Any) -> None:
    connection = server.connect()
    connection.request("GET", "/")
    response = connection.getresponse()
    page = response.read().decode()
    assert response.getheader("content-security-policy", "").startswith("default-src 'self'")
    for name in re.findall(r'(?:src|href)="([^":]+\.\w+)"', page):
        assert server.ask(f"/{name}")[0] == 200
    assert "model.js" not in page
    assert server.ask("/models/people.onnx")[1] == exported.graph.read_bytes()
    status, examples = server.ask("/models/people.rows.json")
    assert status == 200
    assert len(examples) == 7
    assert server.ask(EXPLAIN, {"instances": examples})[0] == 200
    assert server.ask("/docs")[0] == 200
    connection.close()


def test_its_own_description_has_examples_that_work(server: Server) -> None:
    _, about = server.ask("/openapi.json")
    assert about["openapi"].startswith("3.1")
    tried = 0
    for path, methods in about["paths"].items():
        for method, operation in methods.items():
            body = None
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["example"]
            assert server.ask(path, body, method=method.upper())[0] == 200, path
            tried += 1
    assert tried == 16
    row = about["paths"][EXPLAIN]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"][1]
    assert list(row["properties"]) == ["age", "income", "job", "city", "member"]
    assert row["properties"]["job"]["examples"] == ["chef", "clerk", "nurse"]


def test_it_answers_to_its_own_names(server: Server, locked: Server) -> None:
    for name in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80"):
        assert server.ask("/v1/models", headers={"Host": name})[0] == 200
    status, found = server.ask("/v1/models", headers={"Host": "evil.example"})
    assert (status, found["error"][:23]) == (421, "this server answers to ")
    assert locked.ask("/v2/health/ready", headers={"Host": "evil.example"})[0] == 200  # a token is enough


def test_no_other_site_may_use_it(server: Server) -> None:
    connection = server.connect()
    connection.request("GET", "/v1/models", headers={"Origin": "https://example.org"})
    response = connection.getresponse()
    response.read()
    assert response.getheader("access-control-allow-origin") is None
    connection.close()


def test_sites_that_are_listed_may(locked: Server) -> None:
    for origin, allowed in (("https://example.org", "https://example.org"), ("https://example.com", None)):
        connection = locked.connect()
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        connection.request("OPTIONS", EXPLAIN, headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.getheader("access-control-allow-origin") == allowed
        connection.close()


def test_a_token_is_asked_for(locked: Server, rows: list[Any]) -> None:
    right = {"Authorization": "Bearer sésame-42".encode().decode("latin-1")}
    for path, body in ((EXPLAIN, {"instances": rows}), ("/metrics", None), ("/models/people.onnx", None)):
        assert locked.ask(path, body, headers=right)[0] == 200
        for wrong in ({}, {"Authorization": "Bearer nothing"}, {"Authorization": "sesame"}):
            status, found = locked.ask(path, body, headers=wrong)
            assert (status, found) == (401, {"error": "a bearer token is needed"})
    for path in ("/", "/docs", "/v2/health/ready"):
        assert locked.ask(path)[0] == 200
    assert "sésame" not in json.dumps(locked.log)


def test_the_server_needs_neither_torch_nor_pandas(exported: Any) -> None:
    script = """
        import sys
        sys.modules.update(torch=None, pandas=None, shap=None, sklearn=None)
        from fastshapley.serving.app import create_app
        from fastshapley.serving.model_store import Models
        create_app(Models.from_arguments([sys.argv[1]]))
        import fastshapley.serving.server
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), exported.graph], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.onnx"], "nothing.onnx does not exist"),
        (["{graph}", "--rows", "{bad}"], "no model takes these rows: bad.csv lacks the columns"),
        (["{graph}", "--token-file", "{empty}"], "the token is empty"),
    ],
)
def test_it_does_not_start(arguments: list[str], message: str, exported: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("age,colour\n3,red\n")
    (tmp_path / "empty").write_text("\n")
    places = {"graph": exported.graph, "bad": tmp_path / "bad.csv", "empty": tmp_path / "empty"}
    command = [sys.executable, "-m", "fastshapley", "serve", *(part.format(**places) for part in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
