"""Fixtures that several test modules share."""

import math
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from download_server import Server
from problems import QUICK, explainer, people, people_chances, people_model

from fastshapley import FastSHAP, Targets, Training
from fastshapley.trust import effort

# A shell starts background jobs with SIGINT ignored, and programs that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the networks here are tiny, and the machine may be busy


@pytest.fixture
def seeded() -> Iterator[None]:
    """Seed the global generator, which new layers draw their weights from, and restore its state afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@dataclass(frozen=True)
class Exported:
    """An explainer of the people table with error bars, its two files, and the table."""

    explainer: FastSHAP
    graph: Path
    saved: Path
    X: pd.DataFrame


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An explainer and its files, shared by the tests of graphs and servers. Tests must not change the files."""
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    X, y = people(400)
    fitted = explainer(
        people_model(X, y), value_function="surrogate", recipe=replace(QUICK, errors=Training(steps=50))
    ).fit(X)
    folder = tmp_path_factory.mktemp("exported")
    fitted.save(folder / "people.fastshap")
    fitted.export_onnx(folder / "people.onnx")
    return Exported(fitted, folder / "people.onnx", folder / "people.fastshap", X)


# Fixtures for the tests of the page: graphs of other kinds than the one above, and a browser.


@pytest.fixture(scope="session")
def groups_graph(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with a player of two columns, the log link, and values that are not normalised."""
    from fastshapley import Groups

    graph = tmp_path_factory.mktemp("groups") / "groups.onnx"
    recipe = replace(QUICK, errors=Training(steps=50), tails=3.0, own_units=2)
    players = Groups({"work": ["income", "job"]})
    fitted = explainer(
        exported.explainer.model,
        value_function="surrogate",
        recipe=recipe,
        link="log",
        players=players,
        normalize="never",
    )
    fitted.fit(exported.X).export_onnx(graph)
    return graph


@pytest.fixture(scope="session")
def baseline_graph(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of a baseline game, which needs the model for each evaluation."""
    graph = tmp_path_factory.mktemp("baseline") / "baseline.onnx"
    explainer(exported.explainer.model, value_function="baseline", link="logit").fit(exported.X).export_onnx(graph)
    return graph


@pytest.fixture(scope="session")
def conditional(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An explainer of a conditional game with error bars and two outputs. Tests must not change the files."""
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    X, _ = people(400)
    targets = Targets(coalitions=8, evaluations=4_000_000, rows=128)
    recipe = replace(QUICK, errors=Training(steps=50), targets=targets)
    with pytest.MonkeyPatch.context() as patch:
        # Error bars are learnt in any case: by default a slow machine leaves no time for them.
        patch.setattr(effort, "ERROR_BAR_SECONDS", math.inf)
        patch.setattr(effort, "ERROR_BAR_EVALUATIONS", 1000)
        fitted = explainer(people_chances, value_function="conditional", recipe=recipe).fit(X)
    assert fitted.errors_ is not None
    folder = tmp_path_factory.mktemp("conditional")
    fitted.save(folder / "people.fastshap")
    fitted.export_onnx(folder / "people.onnx")
    return Exported(fitted, folder / "people.onnx", folder / "people.fastshap", X)


@pytest.fixture(scope="session")
def iris_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of a model with three classes."""
    from sklearn.datasets import load_iris
    from sklearn.ensemble import HistGradientBoostingClassifier

    graph = tmp_path_factory.mktemp("iris") / "iris.onnx"
    data = load_iris(as_frame=True)
    model = HistGradientBoostingClassifier(max_iter=20).fit(data.data, data.target)
    explainer(model, recipe=replace(QUICK, errors=Training(steps=50))).fit(data.data).export_onnx(graph)
    return graph


@pytest.fixture(scope="session")
def image_explainer() -> FastSHAP:
    """An explainer of digits, with error bars."""
    import small_images

    recipe = replace(small_images.QUICK, errors=Training(steps=20))
    return small_images.explainer(recipe=recipe).fit(small_images.X)


@pytest.fixture(scope="session")
def image_graph(image_explainer: FastSHAP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = tmp_path_factory.mktemp("digits") / "digits.onnx"
    image_explainer.export_onnx(graph)
    return graph


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Chromium. The scope is the module because an event loop runs as long as the browser does."""
    from browser import launched

    with launched() as running:
        yield running


@pytest.fixture
def opened(browser: object) -> Iterator[object]:
    """Open pages (see `Windows`), and check afterwards that they had no errors."""
    from browser import Windows

    windows = Windows(browser)
    yield windows
    windows.close()


# Fixtures for the tests of downloads.


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve files on a port of this machine."""
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the test's own folder the home folder, with no data and an empty cache."""
    monkeypatch.delenv("FASTSHAPLEY_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path
