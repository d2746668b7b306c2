"""The whole server, used as its clients use it: over HTTP."""

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

from fastshapley.export.graph import Graph
from fastshapley.version import __version__

pytest.importorskip("uvicorn", reason="needs the serve extra")
EXPLAIN, PREDICT, INFER = "/v1/models/people:explain", "/v1/models/people:predict", "/v2/models/people/infer"


@pytest.fixture(scope="module")
def rows(exported: Any) -> list[dict[str, Any]]:
    """The first twenty rows as JSON."""
    return records(exported.X[:20])


@pytest.fixture(scope="module")
def server(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a graph and the saved explainer of it, example rows and small limits."""
    examples = tmp_path_factory.mktemp("rows") / "rows.csv"
    exported.X[:7].to_csv(examples, index=False)
    limits = ("--max-body", "100000", "--max-rows", "400", "--timeout", "1")
    with serving(exported.graph, f"second={exported.saved}", "--rows", examples, *limits) as running:
        yield running


@pytest.fixture(scope="module")
def server_with_token(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token that allows one other origin."""
    token_file = tmp_path_factory.mktemp("secret") / "token"
    token_file.write_text("sésame-42\n")
    with serving(exported.graph, "--token-file", token_file, "--origin", "https://example.org") as running:
        yield running


def test_explanations_are_those_of_the_library(server: Server, exported: Any, rows: list[Any]) -> None:
    expected = exported.explainer(exported.X[:20], errors=True)
    for name in ("people", "second"):
        status, answer = server.ask(f"/v1/models/{name}:explain", {"instances": rows})
        assert status == 200
        for row, explanation in enumerate(answer["explanations"]):
            np.testing.assert_allclose(explanation["shap_values"], expected.values[row], atol=1e-5)
            np.testing.assert_allclose(explanation["error_std"], expected.error_std[row], atol=1e-5)
    first, second = (Graph(server.ask(f"/models/{name}.onnx")[1]) for name in ("people", "second"))
    assert first.about == second.about
    _, single = server.ask(EXPLAIN, rows[3])
    np.testing.assert_allclose(single["explanations"][0]["shap_values"], expected.values[3], atol=1e-5)
    _, predicted = server.ask(PREDICT, {"instances": rows})
    np.testing.assert_allclose(predicted["predictions"], answer["predictions"], atol=1e-12)


def test_a_large_request_has_the_same_answer_as_small_ones(server: Server, rows: list[Any]) -> None:
    # These are more rows than one batch, in a body that is parsed in a thread.
    status, answer = server.ask(EXPLAIN, {"instances": rows * 15})
    assert status == 200
    np.testing.assert_allclose(answer["predictions"], answer["predictions"][:20] * 15)
    assert len(answer["explanations"]) == 300


def test_tensors_are_explained_like_rows(server: Server, exported: Any) -> None:
    encoded = exported.explainer.schema_.encode(exported.X[:3])[:].numpy()
    data = [None if np.isnan(value) else value for value in encoded.ravel()]
    status, answer = server.ask(
        INFER, {"id": "x", "inputs": [{"name": "rows", "shape": [3, 5], "datatype": "FP64", "data": data}]}
    )
    assert status == 200
    assert (answer["id"], answer["model_name"]) == ("x", "people")
    values = next(output for output in answer["outputs"] if output["name"] == "shap_values")
    expected = exported.explainer(exported.X[:3]).values
    np.testing.assert_allclose(np.reshape(values["data"], values["shape"]), expected, atol=1e-5)


def test_the_server_tells_about_itself_and_its_models(server: Server) -> None:
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
        (EXPLAIN, b"{", 400, "the body is not JSON"),
        (EXPLAIN, b"\xff\xfe", 400, "the body is not JSON"),
        (EXPLAIN, b"", 400, "the body is not JSON"),
        (EXPLAIN, {"instances": []}, 400, "the body must be"),
        (EXPLAIN, {"instances": [{"age": 3}]}, 400, "row 0 lacks the columns"),
        (EXPLAIN, {"instances": [[0] * 5] * 401}, 413, "401 rows exceed the limit of 400"),
        (EXPLAIN, b"[" * 90_000, 400, "the body is not JSON"),
        (EXPLAIN, b" " * 100_001, 413, "the body exceeds the limit of 100000 bytes"),
        (INFER, {"inputs": []}, 400, "the body needs an input with the name rows"),
        ("/v1/models/nobody:explain", {}, 404, "there is no such model: choose one of ['people', 'second']"),
        ("/v1/models/people:train", {}, 405, "this address does not take POST"),
        ("/v2/health/live", {}, 405, "this address does not take POST"),
        ("/%2e%2e/%2e%2e/etc/passwd", None, 404, "this address does not exist"),
        ("/models/people.fastshap", None, 404, "this address does not exist"),
    ],
)
def test_bad_requests_are_refused_with_a_reason(
    server: Server, path: str, body: Any, status: int, message: str
) -> None:
    actual_status, answer = server.ask(path, body)
    assert actual_status == status
    assert answer["error"].startswith(message)
    assert "Traceback" not in answer["error"]


def test_large_numbers_that_the_network_can_take_are_explained(server: Server) -> None:
    status, answer = server.ask(EXPLAIN, {"instances": [[1e5, 1e5, None, None, None]]})
    assert status == 200
    explanation, prediction = answer["explanations"][0], answer["predictions"][0]
    total = np.sum(explanation["shap_values"], axis=0) + explanation["base_values"]
    np.testing.assert_allclose(total, prediction, atol=1e-6)


@pytest.mark.parametrize("change", [{"income": -1e308, "age": 1e308}, {"income": 1e300}, {"age": 1e30}])
def test_numbers_that_overflow_the_network_are_refused(
    server: Server, rows: list[Any], change: dict[str, float]
) -> None:
    """Some of these give finite values of 1e36, whose sum is all rounding."""
    for path in (EXPLAIN, PREDICT):
        status, answer = server.ask(path, {"instances": [rows[1], {**rows[0], **change}]})
        assert status == 400
        assert answer["error"].startswith(
            "row 1 has numbers so far from the training data that the network overflows"
        )
    assert server.ask(EXPLAIN, {"instances": rows[:1]})[0] == 200


def test_refused_requests_are_logged_without_a_trace(server: Server) -> None:
    server.ask(EXPLAIN, {"instances": [{"age": "secret"}]})
    until(lambda: any(entry.get("status") == 400 for entry in server.log))
    entry = next(entry for entry in reversed(server.log) if entry.get("status") == 400)
    assert entry.keys() >= {"time", "level", "logger", "message", "action", "path", "milliseconds", "client"}
    assert [entry for entry in server.log if "trace" in entry] == []


def test_requests_and_rows_are_counted_but_not_unknown_models(server: Server, rows: list[Any]) -> None:
    def count(text: bytes, name: str) -> float:
        match = re.search(rf"^{re.escape(name)} (\S+)$", text.decode(), re.MULTILINE)
        return float(match[1]) if match else 0.0

    requests = 'fastshapley_requests_total{action="explain",model="people",status="200"}'
    explained = 'fastshapley_rows_total{model="people"}'
    before = server.ask("/metrics")[1]
    server.ask(EXPLAIN, {"instances": rows})
    after = server.ask("/metrics")[1]
    assert count(after, requests) - count(before, requests) == 1
    assert count(after, explained) - count(before, explained) == 20
    server.ask("/v1/models/made-up:explain", {})
    assert b"made-up" not in server.ask("/metrics")[1]


def test_the_server_sends_the_page_and_all_its_files(server: Server, exported: Any) -> None:
    connection = server.connect()
    connection.request("GET", "/")
    response = connection.getresponse()
    page = response.read().decode()
    assert response.getheader("content-security-policy", "").startswith("default-src 'self'")
    files = re.findall(r'(?:src|href)="([^":]+\.\w+)"', page)
    assert "page.js" in files
    for name in files:
        assert server.ask(f"/{name}")[0] == 200
    assert "model.js" not in page
    assert server.ask("/models/people.onnx")[1] == exported.graph.read_bytes()
    status, examples = server.ask("/models/people.rows.json")
    assert status == 200
    assert len(examples) == 7
    assert server.ask(EXPLAIN, {"instances": examples})[0] == 200
    assert server.ask("/docs")[0] == 200
    connection.close()


def test_every_example_of_the_openapi_document_works(server: Server) -> None:
    _, document = server.ask("/openapi.json")
    operations = [
        (path, method, operation)
        for path in document["paths"]
        for method, operation in document["paths"][path].items()
    ]
    assert len(operations) == 22
    for path, method, operation in operations:
        body = None
        if "requestBody" in operation:
            body = operation["requestBody"]["content"]["application/json"]["example"]
        assert server.ask(path, body, method=method.upper())[0] == 200, path


def test_a_server_without_token_answers_only_to_local_host_names(server: Server, server_with_token: Server) -> None:
    for name in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80"):
        assert server.ask("/v1/models", headers={"Host": name})[0] == 200
    status, answer = server.ask("/v1/models", headers={"Host": "evil.example"})
    assert status == 421
    assert answer["error"].startswith("this server only answers to the host names localhost")
    assert server_with_token.ask("/v2/health/ready", headers={"Host": "evil.example"})[0] == 200


@pytest.mark.parametrize("path", ["/v1/models/", "/v2/", "/docs/", "/v1/models/people/"])
def test_nothing_redirects_to_the_host_of_a_request(server: Server, path: str) -> None:
    connection = server.connect()
    connection.request("GET", path, headers={"Host": "evil.example"})
    response = connection.getresponse()
    assert (response.status, response.getheader("location")) == (404, None)
    assert b"evil" not in response.read()
    connection.close()


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_page_of_another_origin_cannot_post_without_permission(
    server: Server, rows: list[Any], content_type: str
) -> None:
    """Browsers send bodies of these types without asking the server first."""
    for origin in ("https://evil.example", "null"):
        status, answer = server.ask(
            EXPLAIN, {"instances": rows}, headers={"Origin": origin, "Content-Type": content_type}
        )
        assert (status, answer["error"]) == (
            415,
            "a page must send its rows with the content-type application/json",
        )


def test_pages_may_post_json_and_programs_need_no_type(server: Server, rows: list[Any]) -> None:
    page = {"Origin": "http://localhost", "Content-Type": "application/json; charset=utf-8"}
    for headers in (page, {"Content-Type": "application/x-www-form-urlencoded"}, {}):  # curl -d sends the second
        assert server.ask(EXPLAIN, {"instances": rows}, headers=headers)[0] == 200


def test_other_origins_are_not_allowed_by_default(server: Server) -> None:
    connection = server.connect()
    connection.request("GET", "/v1/models", headers={"Origin": "https://example.org"})
    response = connection.getresponse()
    response.read()
    assert response.getheader("access-control-allow-origin") is None
    connection.close()


def test_only_listed_origins_are_allowed(server_with_token: Server) -> None:
    for origin, allowed in (("https://example.org", "https://example.org"), ("https://example.com", None)):
        connection = server_with_token.connect()
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        connection.request("OPTIONS", EXPLAIN, headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.getheader("access-control-allow-origin") == allowed
        connection.close()


def test_protected_addresses_need_the_token_and_it_is_not_logged(
    server_with_token: Server, rows: list[Any]
) -> None:
    correct = {"Authorization": "Bearer sésame-42".encode().decode("latin-1")}
    for path, body in ((EXPLAIN, {"instances": rows}), ("/metrics", None), ("/models/people.onnx", None)):
        assert server_with_token.ask(path, body, headers=correct)[0] == 200
        for wrong in ({}, {"Authorization": "Bearer nothing"}, {"Authorization": "sesame"}):
            status, answer = server_with_token.ask(path, body, headers=wrong)
            assert (status, answer) == (401, {"error": "a bearer token is needed"})
    for path in ("/", "/docs", "/v2/health/ready"):
        assert server_with_token.ask(path)[0] == 200
    assert "sésame" not in json.dumps(server_with_token.log)


def test_the_server_imports_neither_torch_nor_pandas(exported: Any) -> None:
    script = """
        import sys
        sys.modules.update(torch=None, pandas=None, shap=None, sklearn=None)
        from fastshapley.serving.app import create_app
        from fastshapley.serving.model_store import ModelStore
        create_app(ModelStore.from_arguments([sys.argv[1]]))
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
def test_the_server_does_not_start_with_bad_files(
    arguments: list[str], message: str, exported: Any, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text("age,colour\n3,red\n")
    (tmp_path / "empty").write_text("\n")
    places = {"graph": exported.graph, "bad": tmp_path / "bad.csv", "empty": tmp_path / "empty"}
    command = [sys.executable, "-m", "fastshapley", "serve", *(part.format(**places) for part in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
