"""Malformed requests, and files that change under load: no crash, no wrong answer, no lost request."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from problems import QUICK, explainer, records
from servers import Server, ask, serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
EXPLAIN, INFER = "/v1/models/people:explain", "/v2/models/people/infer"
ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    -1e-320,
    10**30,
    "",
    "chef",
    "\x00",
    "é" * 50,
    [],
    {},
    [[]],
    {"age": {}},
]


@pytest.fixture(scope="module")
def server(exported: Any) -> Iterator[Server]:
    with serving(exported.graph) as running:
        yield running


def assert_finite(answer: dict[str, Any]) -> None:
    """Assert that an answer has only finite numbers. JSON would have null for others."""
    if "explanations" in answer:
        numbers = [explanation["shap_values"] for explanation in answer["explanations"]]
    else:
        numbers = [output["data"] for output in answer["outputs"] if output["name"] == "shap_values"]
    assert np.isfinite(np.array(numbers, dtype=float)).all()


def damaged(good: bytes, rng: random.Random) -> bytes:
    """Return a body with an error: bytes changed, cut or repeated, or a wrong value."""
    way = rng.randrange(5)
    if way == 0:
        changed = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if way == 1:
        return good[: rng.randrange(len(good))]
    if way == 2:
        return good * rng.randint(2, 3)
    if way == 3:
        return rng.randbytes(rng.randint(0, 200))
    body = json.loads(good)
    where: Any = body
    while isinstance(where, dict | list) and where:
        key = rng.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if rng.random() < 0.4 or not isinstance(where[key], dict | list) or not where[key]:
            where[key] = rng.choice(ODD_VALUES)
            break
        where = where[key]
    return json.dumps(body).encode()


def test_ten_thousand_malformed_bodies_are_refused_or_explained(server: Server, exported: Any) -> None:
    rng = random.Random(0)
    rows = exported.explainer.schema_.encode(exported.X[:2])[:].numpy()
    flat = [None if np.isnan(value) else value for value in rows.ravel()]
    good = {
        EXPLAIN: {"instances": records(exported.X[:2])},
        INFER: {"inputs": [{"name": "rows", "shape": [2, 5], "datatype": "FP64", "data": flat}]},
    }
    bodies = {path: json.dumps(body).encode() for path, body in good.items()}
    expected = {path: server.ask(path, body) for path, body in good.items()}
    connection = server.connect()
    counts: dict[int, int] = {}
    for number in range(10_000):
        path = rng.choice([EXPLAIN, INFER])
        status, found = ask(connection, path, damaged(bodies[path], rng))
        counts[status] = counts.get(status, 0) + 1
        assert status in (200, 400, 413), found
        if status == 200:  # The body is still valid.
            assert_finite(found)
        else:
            assert found.keys() == {"error"}
        if number % 500 == 0:
            assert ask(connection, path, good[path]) == expected[path]
    connection.close()
    assert counts[400] > 5000
    assert server.process.poll() is None
    assert [entry for entry in server.log if "trace" in entry] == []


def test_an_error_does_not_repeat_a_long_request(server: Server) -> None:
    long = "x" * 1_000_000
    tensor = {"name": "rows", "shape": [1, 5], "datatype": long, "data": [0] * 5}
    for path, body in ((INFER, {"inputs": [tensor]}), (EXPLAIN, {"instances": [{long: 1}]})):
        status, found = server.ask(path, body)
        assert status == 400
        assert len(found["error"]) < 2000
    outputs = [{"name": "shap_values"}] * 10_000
    status, found = server.ask(INFER, {"inputs": [{**tensor, "datatype": "FP64"}], "outputs": outputs})
    assert status == 400
    assert found["error"].startswith("outputs must name some of")


def test_the_server_behaves_as_its_openapi_document_says(server: Server) -> None:
    """schemathesis draws valid and invalid requests from the document."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
    schema = schemathesis.openapi.from_dict(server.ask("/openapi.json")[1])
    schema.config.update(base_url=server.url)
    checked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=25,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def run(case: Any) -> None:
                nonlocal checked
                response = case.call()
                assert response.status_code < 500
                checks = schemathesis.checks
                excluded = []
                if "overflows" in response.text:  # Not all numbers can be explained.
                    excluded.append(checks.positive_data_acceptance)
                if response.status_code == 413:  # A body that is too large is refused before it is read.
                    excluded += [checks.positive_data_acceptance, checks.negative_data_rejection]
                case.validate_response(response, excluded_checks=excluded)
                checked += 1

            with suppress(Unsatisfiable):  # A request without a body cannot be invalid.
                run()
    assert checked > 100


def test_a_file_that_is_damaged_and_replaced_under_load_gives_only_right_answers(
    exported: Any, tmp_path: Path
) -> None:
    """Each answer is that of the old file or that of the new file."""
    other = explainer(exported.explainer.model, recipe=QUICK, random_state=1).fit(exported.X)
    other.export_onnx(tmp_path / "other.onnx")
    file = tmp_path / "people.onnx"
    shutil.copy(exported.graph, file)
    body = {"instances": records(exported.X[:1])}
    with serving(file) as server:
        right = {"old": server.ask(EXPLAIN, body)}
        answers: list[Any] = []
        stop = threading.Event()

        def load() -> None:
            connection = server.connect()
            while not stop.is_set():
                answers.append(ask(connection, EXPLAIN, body))
            connection.close()

        def logged(word: str) -> int:
            return sum(word in entry["message"] for entry in server.log)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        file.write_bytes(exported.graph.read_bytes()[:5000])
        until(lambda: logged("cannot be read") == 1)
        file.unlink()
        shutil.copy(tmp_path / "other.onnx", tmp_path / "temporary")
        (tmp_path / "temporary").replace(file)
        until(lambda: logged("reloaded people") == 1)
        until(lambda: len(answers) > 0)
        right["new"] = server.ask(EXPLAIN, body)
        count = len(answers)
        until(lambda: len(answers) > count + 100)
        stop.set()
        for thread in threads:
            thread.join(60)
    assert right["old"] != right["new"]
    assert all(answer in (right["old"], right["new"]) for answer in answers)
    assert answers[0] == right["old"]
    assert answers[-1] == right["new"]
