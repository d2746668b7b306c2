"""The server's pages, of the real server, in a real browser."""

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
TOKEN = "sésame-€42"  # with letters that headers have no room for


@pytest.fixture(scope="module")
def server(exported: Any, iris_graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    examples = tmp_path_factory.mktemp("rows") / "people.csv"
    exported.X[:20].to_csv(examples, index=False)
    with serving(f"a.people={exported.graph}", exported.graph, iris_graph, "--rows", examples) as running:
        yield running


@pytest.fixture(scope="module")
def locked(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    secret = tmp_path_factory.mktemp("secret") / "token"
    secret.write_text(TOKEN, encoding="utf-8")
    with serving(exported.graph, "--token-file", secret) as running:
        yield running


def choose(page: Any, model: str) -> None:
    page.wait_for_selector(".bar[data-value]")
    page.select_option("#model", model)
    page.locator("h1", has_text=model).wait_for()
    page.wait_for_selector(".bar[data-value]")


def sign_in(page: Any, token: str) -> None:
    page.wait_for_selector("#sign-in:not([hidden])")
    page.keyboard.type(token)  # the field has the focus
    page.keyboard.press("Enter")


def test_the_page_has_the_librarys_numbers(opened: Any, server: Server, exported: Any) -> None:
    page = opened(f"{server.url}/")
    page.wait_for_selector(".bar[data-value]")
    assert page.title() == "a.people · Shapley values"  # the first one
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


def test_another_model_is_chosen(opened: Any, server: Server, exported: Any) -> None:
    page = opened(f"{server.url}/")
    choose(page, "iris")
    assert sorted(bars(page))[0] == "petal length (cm)"
    assert page.locator("#row option").count() == 1  # no rows came for it
    choose(page, "people")
    assert page.title() == "people · Shapley values"
    assert_shows(page, exported.explainer, exported.X[:1])


def test_the_server_computes_what_the_page_cannot(opened: Any, server: Server, exported: Any) -> None:
    graph = changed(exported.graph, operator="Mystery")
    page = opened(f"{server.url}/", route=("**/a.people.onnx", lambda route: route.fulfill(body=graph)))
    row = exported.X[:1].copy()
    page.wait_for_selector(".bar[data-value]")
    assert_shows(page, exported.explainer, row)
    assert "does not know the operator Mystery: the values come" in page.locator("#status").inner_text()
    before = page.locator("#prediction").get_attribute("data-value")
    page.locator("input[type=number][data-column=income]").fill("")
    row["income"] = np.nan
    page.wait_for_selector(f"#prediction:not([data-value='{before}'])")
    assert_shows(page, exported.explainer, row)
    assert page.locator("#where").inner_text() == "Computed by the server."


def test_behind_another_server(opened: Any, server: Server, exported: Any) -> None:
    """One that has it below a path of its own, and strips that off."""
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


def test_the_page_asks_for_the_token(opened: Any, locked: Server, exported: Any) -> None:
    page = opened(f"{locked.url}/", excuse="401")
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


# what it answers


def sent(page: Any, path: str, body: str | None = None) -> tuple[int, Any]:
    """What is on show after the button of an address."""
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


def test_everything_in_the_document_is_listed_and_works(opened: Any, server: Server) -> None:
    page = opened(f"{server.url}/docs")
    page.wait_for_selector("details")
    listed = page.locator("summary").evaluate_all(
        "(all) => all.map((one) => [one.querySelector('code').textContent, one.children[0].textContent])"
    )
    paths = server.ask("/openapi.json")[1]["paths"]
    assert sorted(listed) == sorted([path, method.upper()] for path in paths for method in paths[path])
    assert page.locator("h2").all_inner_texts() == ["a.people", "iris", "people", "The server"]
    for path, _ in listed:
        assert sent(page, path)[0] == 200
    unnamed = "(all) => all.filter((one) => !one.ariaLabel && !one.innerText).length"
    assert page.locator("textarea, button:visible").evaluate_all(unnamed) == 0


def test_rows_are_explained(opened: Any, server: Server, exported: Any) -> None:
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
    assert box.locator("dt").all_inner_texts().count("401") == 0  # there is no token


def test_the_list_asks_for_the_token(opened: Any, locked: Server) -> None:
    page = opened(f"{locked.url}/docs", excuse="401")
    sign_in(page, "wrong")
    page.locator("#status", has_text="The token was not accepted.").wait_for()
    assert page.locator("details").count() == 0
    page.fill("#token", "")
    sign_in(page, TOKEN)
    page.wait_for_selector("details")
    assert page.locator("#sign-in").is_hidden()
    assert page.locator("#document").is_hidden()  # a link that could not be followed
    assert sent(page, EXPLAIN)[0] == 200
    assert page.locator("details[open] dt").all_inner_texts().count("401") == 1


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_narrow_screens_and_dark_ones(path: str, opened: Any, server: Server) -> None:
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
    """Of a colour as a browser writes it: rgb(1, 2, 3)."""
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
