"""A server that asks a predictor for the model's outputs, with a predictor that is a real server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from predictors import TestPredictor, chances, predicting
from problems import records
from servers import Server, serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
from starlette.responses import JSONResponse, RedirectResponse, Response

from fastshapley import cli
from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.predictor import Predictor, PredictorAddress
from fastshapley.serving.responses import RequestError

EXPLAIN, PREDICT, INFER = "/v1/models/people:explain", "/v1/models/people:predict", "/v2/models/people/infer"


@pytest.fixture(scope="module")
def running() -> Iterator[TestPredictor]:
    with predicting() as predictor:
        yield predictor


@pytest.fixture
def predictor(running: TestPredictor) -> TestPredictor:
    """The predictor, as it is at first."""
    running.reset()
    return running


@pytest.fixture(scope="module")
def server(
    conditional: Any, baseline_graph: Any, running: TestPredictor, tmp_path_factory: Any
) -> Iterator[Server]:
    """A server whose models ask the predictor over V1, V2, and over V1 with a link."""
    token = tmp_path_factory.mktemp("secret") / "token"
    token.write_text("for-the-predictor\n")
    arguments = [conditional.graph, f"second={conditional.graph}", f"baseline={baseline_graph}"]
    addresses = [
        f"people={running.url}",
        f"second={running.url}/v2/models/people/infer",
        f"baseline={running.url}/v1/models/people:predict",
    ]
    options = [option for address in addresses for option in ("--predictor", address)]
    limits = ["--predictor-timeout", "1", "--timeout", "5", "--predictor-token-file", token]
    with serving(*arguments, *options, *limits) as found:
        until(lambda: found.ask("/v2/health/ready")[0] == 200)
        yield found


def is_ready(server: Server) -> bool:
    return server.ask("/v2/health/ready")[0] == 200


def answered(outputs: Any) -> Callable[[list[Any]], Any]:
    return lambda rows: outputs if isinstance(outputs, Response) else [outputs] * len(rows)


@pytest.mark.parametrize("name", ["people", "second"])
def test_values_sum_to_the_output_of_the_predictor(
    server: Server, conditional: Any, predictor: TestPredictor, name: str
) -> None:
    X = conditional.X[:20]
    expected = conditional.explainer(X)  # It calls the model.
    status, answer = server.ask(f"/v1/models/{name}:explain", {"instances": records(X)})
    assert (status, answer["sums_to"]) == (200, "model")
    for row, explanation in enumerate(answer["explanations"]):
        np.testing.assert_allclose(explanation["shap_values"], expected.values[row], atol=1e-5)
    _, predicted = server.ask(
        f"/v1/models/{name}:predict", {"instances": [list(row.values()) for row in records(X)]}
    )
    assert predicted["sums_to"] == "model"
    np.testing.assert_allclose(predicted["predictions"], chances(records(X)), atol=1e-6)
    assert len(predictor.bodies) == 2


def test_tensors_are_sent_on_as_rows(server: Server, conditional: Any, predictor: TestPredictor) -> None:
    X = conditional.X[:3]
    encoded = conditional.explainer.schema_.encode(X)[:].numpy()
    data = [None if np.isnan(value) else value for value in encoded.ravel()]
    rows = {"name": "rows", "shape": [3, 5], "datatype": "FP64", "data": data}
    status, answer = server.ask(INFER, {"inputs": [rows]})
    assert (status, answer["parameters"]["sums_to"]) == (200, "model")
    found = next(part for part in answer["outputs"] if part["name"] == "predictions")
    np.testing.assert_allclose(np.reshape(found["data"], found["shape"]), chances(records(X)), atol=1e-6)
    columns = [
        {
            "name": name,
            "shape": [3],
            "datatype": "BYTES" if name in ("job", "city", "member") else "FP64",
            "data": [row[name] for row in records(X)],
        }
        for name in X.columns
    ]
    status, answer = server.ask(INFER, {"inputs": columns})
    assert status == 200
    assert predictor.bodies[-1]["instances"] == records(X)  # as the client sent them


def test_the_link_is_applied_to_the_predictors_output(server: Server, predictor: TestPredictor) -> None:
    rows = [{"age": 40, "income": 31.5, "job": "chef", "city": "Bern", "member": True}]
    predictor.respond = answered([0.2, 0.8])
    status, answer = server.ask("/v1/models/baseline:predict", {"instances": rows})
    assert (status, answer["sums_to"]) == (200, "model")
    np.testing.assert_allclose(answer["predictions"], [[np.log(0.25), np.log(4)]], atol=1e-6)


def test_only_rows_without_outputs_are_asked_about(
    server: Server, conditional: Any, predictor: TestPredictor
) -> None:
    rows = records(conditional.X[:3])
    body = {"instances": rows, "outputs": [[0.3, 0.7]] * 3}
    assert server.ask(PREDICT, body)[1]["predictions"][0] == pytest.approx([0.3, 0.7])
    assert predictor.bodies == []
    _, answer = server.ask(PREDICT, {**body, "outputs": [[0.3, 0.7], None, [0.3, 0.7]]})
    assert predictor.bodies == [{"instances": [rows[1]]}]
    assert answer["predictions"][1] == pytest.approx(chances(rows)[1])
    assert answer["sums_to"] == "model"


@pytest.mark.parametrize(
    ("returned", "status", "message"),
    [
        (JSONResponse({"error": "no such column"}, 400), 502, 'answered 400: {"error":"no such column"}'),
        (Response("Traceback\n  file", 500), 502, "answered 500: Traceback file"),
        (Response("", 429), 503, "answered 429: an empty body"),
        (Response("busy", 503), 503, "answered 503: busy"),
        (Response("slow", 504), 504, "answered 504: slow"),
        (
            RedirectResponse("http://127.0.0.1:1/x"),
            502,
            "answered 307, a redirect to 'http://127.0.0.1:1/x', which is",
        ),
        (Response("[]", 200), 502, "sent no predictions: it answered 200: []"),
        (Response("{", 200), 502, "sent no predictions: it answered 200: {"),
        (JSONResponse({"predictions": 3}), 502, "did not send one prediction for each of 1 rows"),
        (JSONResponse({"predictions": []}), 502, "did not send one prediction for each of 1 rows"),
        (Response(b" " * 33_000_000), 502, "its answer exceeds the limit of 32000000 bytes"),
        (1, 502, "returned shape (1,), but (1, 2) is expected; it must return the probabilities of all classes"),
        ([0.5, "a"], 502, "did not return one number, or one list of numbers, per row"),
        ([0.5, None], 502, "did not return one number, or one list of numbers, per row"),
        ([3.0, -2.0], 502, "returned [3.0, -2.0] for row 0, but the explained model returned probabilities"),
        ([0.5, 0.1], 502, "returned [0.5, 0.1] for row 0, but the explained model returned probabilities"),
    ],
)
def test_a_bad_answer_of_the_predictor_is_an_error_that_quotes_it(
    server: Server, conditional: Any, predictor: TestPredictor, returned: Any, status: int, message: str
) -> None:
    predictor.respond = answered(returned)
    found, answer = server.ask(EXPLAIN, {"instances": records(conditional.X[:1])})
    assert found == status
    assert answer["error"].startswith("the predictor of this model ")
    assert message in answer["error"]
    assert str(predictor.port) not in answer["error"]


def test_a_predictor_that_takes_too_long_is_an_error(
    server: Server, conditional: Any, predictor: TestPredictor
) -> None:
    predictor.seconds = 1.5
    start = time.monotonic()
    status, answer = server.ask(EXPLAIN, {"instances": records(conditional.X[:1])})
    assert time.monotonic() - start < 1.4
    assert (status, answer) == (504, {"error": "the predictor of this model did not answer within 1 seconds"})


def test_tokens_go_to_the_right_server_only(server: Server, conditional: Any, predictor: TestPredictor) -> None:
    body = {"instances": records(conditional.X[:1])}
    status, _ = server.ask(EXPLAIN, body, headers={"authorization": "Bearer of-the-client", "cookie": "a=b"})
    assert status == 200
    (headers,) = predictor.headers
    assert headers["authorization"] == "Bearer for-the-predictor"
    assert "cookie" not in headers
    predictor.respond = answered(Response("", 401))
    status, answer = server.ask(EXPLAIN, body)
    assert (status, answer["error"]) == (502, "the predictor of this model answered 401: an empty body")
    text = json.dumps(server.log)
    assert "for-the-predictor" not in text
    assert "of-the-client" not in text


def test_readiness_is_that_of_the_predictor(server: Server, predictor: TestPredictor) -> None:
    predictor.ready = False
    until(lambda: server.ask("/v2/health/ready")[0] == 503)
    until(lambda: server.ask("/v2/models/second/ready")[0] == 503)
    status, answer = server.ask("/v1/models/people")
    assert (status, answer["ready"]) == (503, False)
    assert answer["reason"].startswith("the predictor answered 503")
    assert server.ask("/v2/health/ready")[1]["reasons"].keys() >= {"people", "second"}
    assert server.ask("/v2/health/live")[0] == 200
    predictor.ready = True
    until(lambda: server.ask("/v2/health/ready") == (200, {"ready": True}))
    until(lambda: server.ask("/v1/models/people") == (200, {"name": "people", "ready": True}))
    messages = [entry["message"] for entry in server.log]
    assert f"the predictor at {predictor.url} is ready" in messages


def test_waiting_requests_share_calls_whose_number_is_bounded(
    server: Server, conditional: Any, predictor: TestPredictor
) -> None:
    predictor.seconds = 0.2
    rows = records(conditional.X[:200])
    predictions = ask_together(server, rows)
    np.testing.assert_allclose([answer["predictions"][0] for _, answer in predictions], chances(rows), atol=1e-6)
    assert predictor.most_running <= 8
    assert len(predictor.bodies) < 60


def test_a_row_that_the_predictor_refuses_does_not_spoil_other_requests(
    server: Server, conditional: Any, predictor: TestPredictor
) -> None:
    def respond(given: list[Any]) -> Any:
        return Response("bad", 500) if any(row["age"] == -1 for row in given) else chances(given)

    predictor.seconds, predictor.respond = 0.05, respond
    rows = records(conditional.X[:60])
    rows[40] = {**rows[40], "age": -1}
    answers = ask_together(server, rows)
    assert [place for place, (status, _) in enumerate(answers) if status != 200] == [40]
    assert answers[40][0] == 502


def ask_together(server: Server, rows: list[Any]) -> list[tuple[int, Any]]:
    """Return the answers to requests of one row that are sent at the same time."""
    answers: list[Any] = [None] * len(rows)

    def ask(place: int) -> None:
        answers[place] = server.ask(PREDICT, {"instances": [rows[place]]})

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(rows))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_many_rows_are_asked_about_in_parts(server: Server, conditional: Any, predictor: TestPredictor) -> None:
    rows = records(conditional.X) * 6
    status, answer = server.ask(PREDICT, {"instances": rows})
    assert status == 200
    np.testing.assert_allclose(answer["predictions"], chances(rows), atol=1e-6)
    assert sorted(len(body["instances"]) for body in predictor.bodies) == [400, 1000, 1000]


def test_metadata_says_where_outputs_come_from(server: Server) -> None:
    parameters = server.ask("/v2/models/baseline")[1]["parameters"]
    assert parameters["outputs_from"] == "predictor"
    assert parameters["sums_to"] == "model"
    assert parameters["link"] == "logit"
    assert parameters["optional_inputs"] == ["outputs"]
    schema = server.ask("/openapi.json")[1]["paths"]["/v1/models/baseline:explain"]["post"]
    content = schema["requestBody"]["content"]["application/json"]
    assert content["example"].keys() == {"instances"}


def test_another_server_of_ours_can_be_the_predictor(exported: Any, conditional: Any) -> None:
    rows = records(conditional.X[:5])
    with serving(exported.graph) as predictor:
        _, expected = predictor.ask(PREDICT, {"instances": rows})
        for protocol in ("v1", "v2"):
            options = ["--predictor", predictor.url, "--predictor-protocol", protocol]
            with serving(conditional.graph, *options) as server:
                until(partial(is_ready, server))
                status, answer = server.ask(PREDICT, {"instances": rows})
                assert status == 200, answer
                np.testing.assert_allclose(answer["predictions"], expected["predictions"], atol=1e-6)


def test_a_predictor_that_does_not_run_is_named_and_asked_again(conditional: Any) -> None:
    """The arguments are those that KServe adds to the container of an explainer."""
    rows = records(conditional.X[:1])
    with predicting() as first:
        port = first.port
        kserve = ["--model_name", "people", "--predictor_host", f"127.0.0.1:{port}", "--workers", "1"]
        with serving(f"other={conditional.graph}", *kserve) as server:
            until(lambda: server.ask("/v2/health/ready")[0] == 200)
            assert server.ask(EXPLAIN, {"instances": rows})[0] == 200
            first.respond = answered(Response("", 500, headers={"connection": "close"}))
            assert server.ask(EXPLAIN, {"instances": rows})[0] == 502
            first.reset()
            assert server.ask(EXPLAIN, {"instances": rows})[0] == 200
    with serving(conditional.graph, "--predictor", f"http://127.0.0.1:{port}") as server:
        status, answer = server.ask(EXPLAIN, {"instances": rows})
        assert status == 503
        assert answer["error"] == "the predictor of this model cannot be reached: Connection refused"
        assert server.ask("/v2/health/ready")[0] == 503
        assert server.ask("/v1/models/people")[1]["reason"] == "the predictor cannot be asked: Connection refused"


@pytest.mark.parametrize(
    "url",
    ["predictor:80", "ftp://predictor", "http://", "http://a b", "http://a:x", "http://a\r\nb", "http://é"],
)
def test_addresses_that_are_not_valid_are_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"--predictor is .*: pass an address such as"):
        PredictorAddress.parse(url, "people")


@pytest.mark.parametrize("url", ["http://user:secret@host", "http://host?token=1", "http://host#x"])
def test_addresses_with_secrets_are_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(InputError, match="without a user, a query and a fragment") as error:
        PredictorAddress.parse(url, "people")
    assert "secret" not in str(error.value)


def test_an_address_may_be_that_of_a_server_or_of_a_call() -> None:
    address = PredictorAddress.parse("http://host/base/", "people")
    assert (address.call_path, address.ready_path) == ("/base/v1/models/people:predict", "/base/v1/models/people")
    address = PredictorAddress.parse("http://host", "people", "v2")
    assert (address.call_path, address.ready_path) == ("/v2/models/people/infer", "/v2/models/people/ready")
    address = PredictorAddress.parse("http://host/v2/models/a%20b/infer", "people")
    assert (address.url, address.call_path) == ("http://host", "/v2/models/a%20b/infer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--predictor", "other=http://a"],
            "--predictor is for 'other', which is not served: choose one of ['people']",
        ),
        (["--predictor", "http://a", "--predictor", "http://b"], "--predictor is given 2 times without a name"),
        (
            ["--predictor", "people=http://a", "--predictor", "people=http://b"],
            "--predictor is given twice for 'people'",
        ),
        (["--predictor", "http://a", "--model", "m.onnx"], "people has both --predictor and --model"),
        (["--model", "m.joblib"], "--model is 'm.joblib': serve takes an ONNX file (.onnx)"),
        (
            ["--predictor", "people=http://u:secret@a"],
            "--predictor is 'http://***@a': pass an address without a user",
        ),
        (["--predictor", "http://a"], "people explains a surrogate, which does not take the model's output"),
        (["more=x.onnx", "--model_name", "a"], "--model_name names one explainer, but there are 2"),
    ],
)
def test_options_that_do_not_fit_are_errors_before_the_server_starts(
    exported: Any, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert cli.main(["serve", str(exported.graph), *options]) == 1
    assert message in capsys.readouterr().err


class TestInThisProcess:
    """The same class without a server around it."""

    @staticmethod
    def ask(address: PredictorAddress, rows: list[Any], graph: Graph, seconds: float = 10.0) -> list[Any]:
        async def asked() -> list[Any]:
            asking = Predictor(address, seconds=seconds)
            try:
                found: list[Any] = await asking(rows, graph)
                return found
            finally:
                await asking.close()

        return asyncio.run(asked())

    @pytest.mark.parametrize("protocol", ["v1", "v2"])
    def test_it_returns_what_the_model_returns(
        self, predictor: TestPredictor, conditional: Any, protocol: Any
    ) -> None:
        rows, graph = records(conditional.X[:7]), Graph(conditional.graph)
        found = self.ask(PredictorAddress(predictor.url, "people", protocol), rows, graph)
        np.testing.assert_allclose(found, chances(rows))

    @pytest.mark.parametrize(
        ("returned", "status", "message"),
        [
            (Response("no", 400), 502, "answered 400: no"),
            (Response("busy", 503), 503, "answered 503: busy"),
            (Response("no JSON"), 502, "sent no predictions"),
            (JSONResponse({"predictions": [1]}), 502, "did not send one prediction for each of 3 rows"),
            (RedirectResponse("http://127.0.0.1:1/"), 502, "a redirect to 'http://127.0.0.1:1/', which is not"),
        ],
    )
    def test_failures_have_a_status_and_a_reason(
        self, predictor: TestPredictor, conditional: Any, returned: Response, status: int, message: str
    ) -> None:
        predictor.respond = answered(returned)
        address, graph = PredictorAddress(predictor.url, "people"), Graph(conditional.graph)
        with pytest.raises(RequestError, match=message) as failure:
            self.ask(address, records(conditional.X[:3]), graph)
        assert failure.value.status == status

    def test_a_slow_or_absent_predictor_is_not_waited_for(self, predictor: TestPredictor, conditional: Any) -> None:
        rows, graph = records(conditional.X[:1]), Graph(conditional.graph)
        predictor.seconds = 5.0
        with pytest.raises(RequestError, match=r"did not answer within 0\.1 seconds") as failure:
            self.ask(PredictorAddress(predictor.url, "people"), rows, graph, seconds=0.1)
        assert failure.value.status == 504
        with pytest.raises(RequestError, match="cannot be reached") as failure:
            self.ask(PredictorAddress("http://127.0.0.1:1", "people"), rows, graph)
        assert failure.value.status == 503

    @pytest.mark.parametrize("ready", [True, False])
    def test_it_is_ready_when_the_predictor_is(self, predictor: TestPredictor, ready: bool) -> None:
        predictor.ready = ready

        async def watched() -> Predictor:
            asking = Predictor(PredictorAddress(predictor.url, "people"))
            task = asyncio.create_task(asking.watch())
            while asking.reason == "the predictor was not asked yet":
                await asyncio.sleep(0.01)
            task.cancel()
            await asking.close()
            return asking

        found = asyncio.run(asyncio.wait_for(watched(), 30))
        assert found.ready is ready
        assert ready or "answered 503" in found.reason
