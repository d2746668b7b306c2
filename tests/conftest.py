"""What all tests share."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from download_server import Server
from problems import QUICK, explainer, people, people_model

from fastshapley import FastSHAP, Training

# A shell starts background jobs with SIGINT ignored, and programs that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the networks here are tiny, and the machine may be busy


@pytest.fixture
def seeded() -> Iterator[None]:
    """New layers draw their weights from the global generator: a seed for it, and its state afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@dataclass(frozen=True)
class Exported:
    """An explainer of people, with error bars: itself, its two files, and the table it was fitted to."""

    explainer: FastSHAP
    graph: Path
    saved: Path
    X: pd.DataFrame


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """What the tests of graphs and servers share; the files are not to be changed."""
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    X, y = people(400)
    fitted = explainer(people_model(X, y), recipe=replace(QUICK, errors=Training(steps=50))).fit(X)
    folder = tmp_path_factory.mktemp("exported")
    fitted.save(folder / "people.fastshap")
    fitted.export_onnx(folder / "people.onnx")
    return Exported(fitted, folder / "people.onnx", folder / "people.fastshap", X)


# What the tests of the page share: graphs of other kinds than the one above, and a browser.


@pytest.fixture(scope="session")
def groups_graph(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a player with two columns, on the scale of the logarithm, whose values need not add up."""
    from fastshapley import Groups

    graph = tmp_path_factory.mktemp("groups") / "groups.onnx"
    recipe = replace(QUICK, errors=Training(steps=50), tails=3.0, own_units=2)
    players = Groups({"work": ["income", "job"]})
    fitted = explainer(exported.explainer.model, recipe=recipe, link="log", players=players, normalize="never")
    fitted.fit(exported.X).export_onnx(graph)
    return graph


@pytest.fixture(scope="session")
def baseline_graph(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a game that only the model can play."""
    graph = tmp_path_factory.mktemp("baseline") / "baseline.onnx"
    explainer(exported.explainer.model, value_function="baseline", link="logit").fit(exported.X).export_onnx(graph)
    return graph


@pytest.fixture(scope="session")
def iris_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three classes."""
    from sklearn.datasets import load_iris
    from sklearn.ensemble import HistGradientBoostingClassifier

    graph = tmp_path_factory.mktemp("iris") / "iris.onnx"
    data = load_iris(as_frame=True)
    model = HistGradientBoostingClassifier(max_iter=20).fit(data.data, data.target)
    explainer(model, recipe=replace(QUICK, errors=Training(steps=50))).fit(data.data).export_onnx(graph)
    return graph


@pytest.fixture(scope="session")
def image_explainer() -> FastSHAP:
    """Of digits, with error bars."""
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
    """Chromium. It is a module's, and not the session's: an event loop runs as long as it does."""
    from browser import launched

    with launched() as running:
        yield running


@pytest.fixture
def opened(browser: object) -> Iterator[object]:
    """Opens pages (see `Windows`); afterwards nothing has gone wrong there."""
    from browser import Windows

    windows = Windows(browser)
    yield windows
    windows.close()


# Fixtures of the tests of downloads.


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
