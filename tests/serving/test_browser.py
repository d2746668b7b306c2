"""The pages of a real server, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import assert_shows, bars, changed, fits, value
from problems import records
from servers import Server, serving

pytest.importorskip("onnxscript", reason="needs the onnx extra")
pytest.importorskip("uvicorn", reason="needs the serve extra")
EXPLAIN = "/v1/models/people:explain"
NARROW = {"width": 360, "height": 740}
TOKEN = "sésame-€42"  # These characters do not fit into a header as they are.


@pytest.fixture(scope="module")
def server(exported: Any, iris_graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with three models and example rows."""
    examples = tmp_path_factory.mktemp("rows") / "people.csv"
    exported.X[:20].to_csv(examples, index=False)
    with serving(f"a.people={exported.graph}", exported.graph, iris_graph, "--rows", examples) as running:
        yield running


@pytest.fixture(scope="module")
def server_with_token(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that needs a token."""
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text(TOKEN, encoding="utf-8")
    with serving(exported.graph, "--token-file", secret) as running:
        yield running


def choose(page: Any, model: str) -> None:
    """Choose a model on the page."""
    page.wait_for_selector(".bar[data-value]")
    page.select_option("#model", model)
    page.locator("h1", has_text=model).wait_for()
    page.wait_for_selector(".bar[data-value]")


def sign_in(page: Any, token: str) -> None:
    """Enter a token on the page."""
    page.wait_for_selector("#sign-in:not([hidden])")
    page.keyboard.type(token)  # The field has the focus.
    page.keyboard.press("Enter")


def test_the_page_shows_the_numbers_of_the_library(opened: Any, server: Server, exported: Any) -> None:
    page = opened(f"{server.url}/")
    page.wait_for_selector(".bar[data-value]")
    assert page.title() == "a.people · Shapley values"  # The first model is shown.
    for row in (0, 6):
        page.select_option("#row", str(row))
        assert_shows(page, exported.explainer, exported.X[row : row + 1])
    before, moved = bars(page), exported.X[6:7].copy()
    for age in (20, 75):
        page.locator("input[type=range][data-column=age]").fill(str(age))
        moved["age"] = age
        assert_shows(page, exported.explainer, moved)
        assert value(page, "base") + value(page, "sum") == pytest.approx(value(page, "prediction"), abs=1e-5)
        assert bars(page) != before
    assert page.locator("#row option").count() == 21
    assert "stays on this page" in page.locator("#where").inner_text()


def test_another_model_can_be_chosen(opened: Any, server: Server, exported: Any) -> None:
    page = opened(f"{server.url}/")
    choose(page, "iris")
    assert sorted(bars(page))[0] == "petal length (cm)"
    assert page.locator("#row option").count() == 1  # It has no example rows.
    choose(page, "people")
    assert page.title() == "people · Shapley values"
    assert_shows(page, exported.explainer, exported.X[:1])


def test_the_server_computes_if_the_page_does_not_support_an_operator(
    opened: Any, server: Server, exported: Any
) -> None:
    graph = changed(exported.graph, operator="Mystery")
    page = opened(f"{server.url}/", route=("**/a.people.onnx", lambda route: route.fulfill(body=graph)))
    row = exported.X[:1].copy()
    page.wait_for_selector(".bar[data-value]")
    assert_shows(page, exported.explainer, row)
    assert "does not support the operator Mystery, so the server computes" in page.locator("#status").inner_text()
    before = page.locator("#prediction").get_attribute("data-value")
    page.locator("input[type=number][data-column=income]").fill("")
    row["income"] = np.nan
    page.wait_for_selector(f"#prediction:not([data-value='{before}'])")
    assert_shows(page, exported.explainer, row)
    assert page.locator("#where").inner_text() == "Computed by the server."


def test_the_pages_work_behind_a_proxy_that_adds_a_path(opened: Any, server: Server, exported: Any) -> None:
    outside = "http://page.test/explained"

    def forward(route: Any) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace(outside, server.url)))

    page = opened(f"{outside}/", route=("**/*", forward))
    page.wait_for_selector(".bar[data-value]")
    assert_shows(page, exported.explainer, exported.X[:1])
    page.click("#docs")
    page.wait_for_selector("details")
    assert page.url == f"{outside}/docs"
    assert sent(page, EXPLAIN)[0] == 200
    page.click("nav a >> nth=0")
    page.wait_for_selector(".bar[data-value]")
    assert page.url == f"{outside}/"


def test_the_page_asks_for_the_token(opened: Any, server_with_token: Server, exported: Any) -> None:
    page = opened(f"{server_with_token.url}/", excuse="401")
    sign_in(page, "wrong")
    page.locator("#status", has_text="The token was not accepted.").wait_for()
    page.fill("#token", "")
    sign_in(page, TOKEN)
    page.wait_for_selector(".bar[data-value]")
    assert page.locator("#sign-in").is_hidden()
    assert page.locator("#status").inner_text() == ""
    assert page.locator("#row option").count() == 1
    page.select_option("select[data-column=job]", label="nurse")
    assert len(bars(page)) == 5
    assert TOKEN not in page.content()


# The list of addresses


def sent(page: Any, path: str, body: str | None = None) -> tuple[int, Any]:
    """Send the request of an address, and return the status and the answer that the page shows."""
    box = page.locator("details", has=page.locator(f"code:text-is('{path}')"))
    if not box.evaluate("(box) => box.open"):
        box.locator("summary").click()
    if body is not None:
        box.locator("textarea").fill(body)
    box.locator(".status").evaluate("(status) => { status.textContent = ''; }")
    box.get_by_role("button", name="Send").click()
    box.locator(".status:not(:empty)").wait_for()
    box.locator("pre").wait_for()
    return int(box.locator(".status").inner_text().split()[0]), json.loads(box.locator("pre").inner_text())


def test_every_address_of_the_openapi_document_is_listed_and_works(opened: Any, server: Server) -> None:
    page = opened(f"{server.url}/docs")
    page.wait_for_selector("details")
    listed = page.locator("summary").evaluate_all(
        "(all) => all.map((one) => [one.querySelector('code').textContent, one.children[0].textContent])"
    )
    paths = server.ask("/openapi.json")[1]["paths"]
    assert sorted(listed) == sorted([path, method.upper()] for path in paths for method in paths[path])
    assert page.locator("h2").all_inner_texts() == ["a.people", "iris", "people", "Server"]
    for path, _ in listed:
        assert sent(page, path)[0] == 200
    unnamed = "(all) => all.filter((one) => !one.ariaLabel && !one.innerText).length"
    assert page.locator("textarea, button:visible").evaluate_all(unnamed) == 0


def test_the_list_of_addresses_explains_rows_and_shows_errors(opened: Any, server: Server, exported: Any) -> None:
    page = opened(f"{server.url}/docs", excuse="400")
    page.wait_for_selector("details")
    status, found = sent(page, EXPLAIN, json.dumps({"instances": records(exported.X[:2])}))
    assert status == 200
    values = [explanation["shap_values"] for explanation in found["explanations"]]
    np.testing.assert_allclose(values, exported.explainer(exported.X[:2]).values, atol=1e-4)
    status, found = sent(page, EXPLAIN, '{"instances": [{"age": 3}]}')
    assert (status, list(found)) == (400, ["error"])
    assert page.locator(".status.error").count() == 1
    box = page.locator("details[open]")
    assert ["job", "chef, clerk, nurse or null"] in box.locator("dt").evaluate_all(
        "(terms) => terms.map((term) => [term.textContent, term.nextSibling.textContent])"
    )
    assert box.locator("dt").all_inner_texts().count("401") == 0  # The server needs no token.


def test_the_list_of_addresses_asks_for_the_token(opened: Any, server_with_token: Server) -> None:
    page = opened(f"{server_with_token.url}/docs", excuse="401")
    sign_in(page, "wrong")
    page.locator("#status", has_text="The token was not accepted.").wait_for()
    assert page.locator("details").count() == 0
    page.fill("#token", "")
    sign_in(page, TOKEN)
    page.wait_for_selector("details")
    assert page.locator("#sign-in").is_hidden()
    assert page.locator("#document").is_hidden()  # The link could not send the token.
    assert sent(page, EXPLAIN)[0] == 200
    assert page.locator("details[open] dt").all_inner_texts().count("401") == 1


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_fit_narrow_screens_and_have_a_dark_scheme(path: str, opened: Any, server: Server) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page = opened(server.url + path, viewport=NARROW, color_scheme=scheme)
        page.locator(".bar[data-value], details").first.wait_for()
        assert fits(page)
        if path == "/docs":
            sent(page, EXPLAIN)
            assert fits(page)
        back, text = page.evaluate(
            "[...'backgroundColor color'.split(' ')].map((n) => getComputedStyle(document.body)[n])"
        )
        assert lightness(back) > lightness(text) if scheme == "light" else lightness(back) < lightness(text)
        colours.add(back)
    assert len(colours) == 2


def lightness(colour: str) -> int:
    """Return the lightness of a colour that is written as rgb(1, 2, 3)."""
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
