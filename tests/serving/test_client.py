"""The client: it sends a table and returns an explanation."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import shap
from problems import explainer, people_chances
from servers import Server, serving
from small_images import X as IMAGES

from fastshapley import FastSHAP
from fastshapley.client import Client
from fastshapley.errors import InputError, ServerError

pytest.importorskip("uvicorn", reason="needs the serve extra")


@pytest.fixture(scope="module")
def regression() -> Any:
    """An explainer with one output, and its data."""
    X = np.random.default_rng(0).normal(size=(300, 3))
    return explainer(lambda rows: rows @ np.array([1.0, -2.0, 0.5])).fit(X), X


@pytest.fixture(scope="module")
def server(
    exported: Any,
    image_graph: Path,
    baseline_graph: Path,
    regression: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A server with four models."""
    file: Path = tmp_path_factory.mktemp("client") / "regression.onnx"
    regression[0].export_onnx(file)
    with serving(exported.graph, image_graph, baseline_graph, file, "--max-rows", "1000") as running:
        yield running


def assert_same(found: shap.Explanation, expected: shap.Explanation) -> None:
    """Assert that two explanations have the same numbers."""
    for name in ("values", "base_values", "error_std"):
        left, right = getattr(found, name), getattr(expected, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_allclose(left, right, atol=1e-5)


def test_a_table_with_categories_and_missing_values(server: Server, exported: Any) -> None:
    X = exported.X[:50]
    found = Client(server.url, "people").explain(X)
    expected = exported.explainer(X, errors=True)
    assert_same(found, expected)
    assert found.sums_to == expected.sums_to == "surrogate"
    assert found.feature_names == expected.feature_names
    assert found.output_names == expected.output_names
    np.testing.assert_array_equal(found.data, expected.data)
    np.testing.assert_array_equal(found.display_data[:, 2:4], expected.display_data[:, 2:4])
    reversed_columns = Client(server.url, "people").explain(X[X.columns[::-1]])
    np.testing.assert_array_equal(reversed_columns.data, found.data)
    assert_same(reversed_columns, found)
    other_library = Client(server.url, "people").explain(pl.from_pandas(X))
    np.testing.assert_array_equal(other_library.data, found.data)
    assert_same(other_library, found)
    shap.plots.waterfall(found[0, :, 1], show=False)


def test_many_rows_are_sent_in_several_requests(server: Server, exported: Any) -> None:
    X = pd.concat([exported.X] * 6, ignore_index=True)
    client = Client(server.url, "people")
    np.testing.assert_allclose(client.explain(X).values[-400:], exported.explainer(exported.X).values, atol=1e-5)
    np.testing.assert_allclose(client.predict(X)[:400], client.predict(exported.X))


def test_requests_are_halved_if_the_server_refuses_them_as_too_large(exported: Any) -> None:
    with serving(exported.graph, "--max-body", "3000") as server:
        client = Client(server.url)
        found = client.explain(exported.X[:100])
        np.testing.assert_allclose(found.values, exported.explainer(exported.X[:100]).values, atol=1e-5)
    with serving(exported.graph, "--max-body", "50") as server, pytest.raises(ServerError, match="answered 413"):
        Client(server.url).explain(exported.X[:2])


def test_the_reason_is_read_when_a_large_body_is_refused(server: Server) -> None:
    with pytest.raises(ServerError, match="answered 404: there is no such model"):
        Client(server.url, "nobody").explain(np.random.default_rng(0).normal(size=(1000, 90)))


def test_an_array_and_a_model_with_one_output(server: Server, regression: Any) -> None:
    fitted, X = regression
    found = Client(server.url, "regression").explain(X[:9])
    assert found.values.shape == (9, 3)
    assert_same(found, fitted(X[:9], errors=fitted.errors_ is not None))
    np.testing.assert_array_equal(found.data, X[:9])


def test_images_are_explained_on_their_grid(server: Server, image_explainer: FastSHAP) -> None:
    found = Client(server.url, "digits").explain(IMAGES[:3])
    expected = image_explainer(IMAGES[:3], errors=True)
    np.testing.assert_allclose(found.error_std, expected.error_std, atol=1e-5)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    np.testing.assert_allclose(found.data, expected.data)
    shap.image_plot(found, show=False)


def test_outputs_of_the_model_are_sent_if_the_explainer_needs_them(server: Server, exported: Any) -> None:
    X, client = exported.X[:5], Client(server.url, "baseline")
    probabilities = exported.explainer.model.predict_proba(X)
    outputs = np.log(probabilities / (1 - probabilities))
    found = client.explain(X, outputs)
    np.testing.assert_allclose(client.predict(X, outputs), outputs)
    np.testing.assert_allclose(found.values.sum(1) + found.base_values, outputs, atol=1e-5)
    with pytest.raises(InputError, match="answered 400: this is an explainer of the model itself, and needs"):
        client.explain(X)


def test_the_model_must_be_named_if_there_are_several(server: Server) -> None:
    assert Client(server.url, "people").models() == ["baseline", "digits", "people", "regression"]
    with pytest.raises(InputError, match=r"the server has the models .*: pass model="):
        Client(server.url)
    with pytest.raises(ServerError, match="answered 404: there is no such model"):
        Client(server.url, "no body").explain(pd.DataFrame({"a": [1]}))


def test_bad_rows_are_refused_with_a_reason(server: Server, exported: Any) -> None:
    with pytest.raises(InputError, match="row 0 lacks the column \\['job'\\]"):
        Client(server.url, "people").explain(exported.X[:1].drop(columns="job"))
    with pytest.raises(InputError, match="X has no rows"):
        Client(server.url, "people").explain(exported.X[:0])
    with pytest.raises(InputError, match="X must be a table or images"):
        Client(server.url, "people").explain(np.zeros(5))
    with pytest.raises(InputError, match="X has a value that JSON cannot hold"):
        Client(server.url, "regression").explain(np.full((1, 3), np.inf))
    with pytest.raises(InputError, match="X has several columns with the same name"):
        Client(server.url, "people").explain(pd.concat([exported.X, exported.X], axis=1))
    with pytest.raises(InputError, match="outputs has 2 rows, but X has 5"):
        Client(server.url, "baseline").explain(exported.X[:5], np.zeros((2, 2)))


def test_a_token_is_sent_and_the_only_model_is_chosen(exported: Any) -> None:
    with serving(exported.graph, environment={"FASTSHAPLEY_TOKEN": "sésame\n"}) as server:
        for token in ("sésame", "sésame\n"):  # A file may end with a newline.
            assert Client(server.url, token=token).model == "people"
        with pytest.raises(InputError, match="token has characters that are not printable"):
            Client(server.url, token="sés\name")
        with pytest.raises(ServerError, match="answered 401: a bearer token is needed"):
            Client(server.url)


def test_a_missing_server_or_a_bad_address_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match="does not answer"):
        Client(f"http://127.0.0.1:{port}", "people").explain(np.zeros((1, 2)))
    with pytest.raises(InputError, match="url must begin with http"):
        Client("file:///etc/passwd")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    """A redirect to another host would send it the token, and one of a POST the rows."""
    received: list[str] = []

    class Redirects(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("location", f"http://localhost:{self.connection.getsockname()[1]}/stolen")
            self.send_header("content-length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as other:
        threading.Thread(target=other.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{other.server_address[1]}"
            with pytest.raises(ServerError, match=r"redirects to 'http://localhost:\d+/stolen': if you trust it"):
                Client(url, token="secret")
            with pytest.raises(ServerError, match="redirects to"):
                Client(url, "people", token="secret").predict(np.zeros((1, 2)))
        finally:
            other.shutdown()
    assert received == ["/v1/models", "/v1/models/people:predict"]


def test_outputs_of_a_conditional_game_are_optional(conditional: Any) -> None:
    """The saved explainer is served, without its model."""
    X, outputs = conditional.X[:20], people_chances(conditional.X[:20])
    alone = FastSHAP.load(conditional.saved)
    with serving(conditional.saved, "--max-rows", "8") as server:
        client = Client(server.url)
        known = client.explain(X, outputs)
        assert known.sums_to == "model"
        assert_same(known, conditional.explainer(X, errors=True))
        estimated = client.explain(X)
        assert estimated.sums_to == "surrogate"
        assert_same(estimated, alone(X, errors=True))
        assert np.abs(estimated.values - known.values).max() > 1e-3
        outputs[10:, 0] = np.nan  # requests of some rows with outputs, and of others without
        mixed = client.explain(X, outputs)
        assert mixed.sums_to == "mixed"
        np.testing.assert_allclose(mixed.values[:10], known.values[:10], atol=1e-9)
        np.testing.assert_allclose(mixed.values[10:], estimated.values[10:], atol=1e-9)
        np.testing.assert_allclose(client.predict(X)[10:], client.predict(X, outputs)[10:])
        rows = {"name": "rows", "shape": [1, 5], "datatype": "FP64", "data": [40, 31.5, 0, 1, 1]}
        given = {"name": "outputs", "shape": [1, 2], "datatype": "FP64", "data": [0.25, 0.75]}
        for inputs, sums_to in (([rows], "surrogate"), ([rows, given], "model")):
            status, answer = server.ask("/v2/models/people/infer", {"inputs": inputs})
            assert (status, answer["parameters"]) == (200, {"sums_to": sums_to})
        assert [part["data"] for part in answer["outputs"] if part["name"] == "predictions"] == [[0.25, 0.75]]
