"""Tests of FastSHAP on images: saved files, and runs that are interrupted and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_items import Items, labelled
from small_images import (
    BINS,
    BRIEF,
    MODEL,
    MODELS,
    QUICK,
    X,
    explainer,
    network,
)
from torch import Tensor, nn

import fastshapley.training.checkpoint
from fastshapley import Backbone, FastSHAP, Superpixels, UNet
from fastshapley.errors import FileFormatError, ModelError, TrainingError
from fastshapley.networks.unet import UNetMaps
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.run import one_thread
from fastshapley.value_functions import Marginal

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    return explainer().fit(X)


class TestFiles:
    @pytest.fixture
    def saved(self, fitted: FastSHAP, tmp_path: Path) -> Path:
        fitted.save(tmp_path / "digits.fastshap")
        return tmp_path / "digits.fastshap"

    def test_a_loaded_explainer_equals_the_saved_one(self, fitted: FastSHAP, saved: Path) -> None:
        state = torch.get_rng_state()
        loaded = FastSHAP.load(saved, model=network(seed=5))  # provides the layers; the file provides the weights
        assert torch.equal(torch.get_rng_state(), state)
        for upsample in (False, True):
            a, b = loaded(X, upsample=upsample), fitted(X, upsample=upsample)
            assert a.values.tobytes() == b.values.tobytes()
            assert a.base_values.tobytes() == b.base_values.tobytes()
        assert loaded.estimate(X[:4]).values.tobytes() == fitted.estimate(X[:4]).values.tobytes()
        assert loaded.report_ == fitted.report_
        assert loaded.partition_ == fitted.partition_
        assert loaded.schema_ == fitted.schema_
        assert loaded.players == Superpixels(grid=(2, 2), fill=(0.0,))
        assert (loaded.logits, loaded.recipe, loaded.losses_) == (True, QUICK, fitted.losses_)
        refitted = FastSHAP(**{**loaded.get_params(deep=False), "progress": False, "random_state": 0}).fit(X)
        assert refitted.shap_values(X[:3]).shape == (3, 2, 2, 3)

    @pytest.mark.parametrize(
        "options",
        [
            {"value_function": Marginal(8)},
            {"value_function": "baseline"},
            {"link": "logit"},
            {"link": "log", "value_function": "baseline"},
            {"players": Superpixels(segmentation=BINS * 7, fill=0.5)},
            {"players": Superpixels(grid=(4, 1), fill=(0.5,)), "network": UNet(16)},
            {"normalize": "never"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("outputs", [1, 2])
    def test_every_kind_of_game_can_be_saved_and_loaded(
        self, options: dict[str, Any], outputs: int, tmp_path: Path
    ) -> None:
        fitted = explainer(MODELS[outputs], **options).fit(X)
        fitted.save(tmp_path / "file")
        loaded = FastSHAP.load(tmp_path / "file", model=MODELS[outputs])
        assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()
        assert loaded.partition_ == fitted.partition_
        assert loaded.estimate(X[:3]).values.tobytes() == fitted.estimate(X[:3]).values.tobytes()

    def test_loading_a_backbone_without_the_model_raises(self, saved: Path) -> None:
        for model in (None, lambda x: x):
            with pytest.raises(FileFormatError, match="made of your model's own layers: pass the model as model="):
                FastSHAP.load(saved, model=model)

    def test_loading_a_surrogate_without_the_model_raises(self, tmp_path: Path) -> None:
        fitted = explainer(network=UNet(16)).fit(X)
        fitted.save(tmp_path / "file")
        with pytest.raises(
            FileFormatError, match=r"the surrogate's weights, but its layers .*: pass that as model="
        ):
            FastSHAP.load(tmp_path / "file")
        loaded = FastSHAP.load(tmp_path / "file", model=network())
        assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()

    def test_explaining_with_a_baseline_without_the_model_raises(self, tmp_path: Path) -> None:
        explainer(network=UNet(16), value_function="baseline").fit(X).save(tmp_path / "file")
        loaded = FastSHAP.load(tmp_path / "file")
        assert isinstance(loaded.network_.body, UNetMaps)
        with pytest.raises(ModelError, match=r"baseline .*load\(path, model=model\)"):
            loaded(X)

    @pytest.mark.parametrize("body", [None, UNet(16)], ids=["backbone", "unet"])
    @pytest.mark.parametrize("model", [network(width=6), network(4)], ids=["width", "outputs"])
    def test_loading_with_a_model_of_other_shapes_raises(self, model: nn.Module, body: Any, tmp_path: Path) -> None:
        explainer(network=body).fit(X).save(tmp_path / "file")
        with pytest.raises(FileFormatError, match="model is not the network that the file has weights of"):
            FastSHAP.load(tmp_path / "file", model=model)

    def test_loading_a_custom_network_without_it_raises(self, tmp_path: Path) -> None:
        explainer(network=nn.Conv2d(1, 3, 1)).fit(X).save(tmp_path / "file")
        with pytest.raises(FileFormatError, match="pass it as network="):
            FastSHAP.load(tmp_path / "file", model=MODEL)
        with pytest.raises(FileFormatError, match="network is not the network that the file has weights of"):
            FastSHAP.load(tmp_path / "file", model=MODEL, network=nn.Conv2d(1, 3, 3))

    def test_a_model_with_two_names_for_a_layer_can_be_saved(self, tmp_path: Path) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = network()
                self.features, self.classifier = self.layers[:-1], self.layers[-1]

            def forward(self, x: Tensor) -> Tensor:
                return self.classifier(self.features(x))

        fitted = explainer(Twice()).fit(X)
        fitted.save(tmp_path / "file")
        assert FastSHAP.load(tmp_path / "file", model=Twice()).shap_values(X).shape == (len(X), 2, 2, 3)

    @pytest.mark.parametrize(
        "model",
        [
            nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
            nn.Sequential(nn.Conv2d(3, 4, 3), *list(network())[1:]),
            nn.Sequential(network()),
        ],
        ids=["no such layer", "other channels", "other names"],
    )
    def test_loading_with_a_model_of_another_architecture_raises(
        self, fitted: FastSHAP, model: Any, tmp_path: Path
    ) -> None:
        fitted.save(tmp_path / "file")
        try:
            FastSHAP.load(tmp_path / "file", model=model)
        except Exception as error:
            assert type(error) is FileFormatError, type(error)  # noqa: PT017
        else:
            pytest.fail("it was taken")


class TestLongRuns:
    LONG = replace(QUICK, explainer=replace(BRIEF, epochs=60, steps=None))
    SCRIPT = """
        import sys, torch
        import test_explainer_images_files as images
        torch.set_num_threads(1)  # the last digits depend on the number of threads
        images.fastshapley.training.checkpoint.SAVE_INTERVAL = -1.0
        images.explainer(recipe=images.TestLongRuns.LONG).fit(images.X, checkpoint=sys.argv[1])
    """

    def test_a_killed_run_resumes_and_gives_the_same_bytes(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        script = "\n".join(line.strip() for line in self.SCRIPT.splitlines())
        killed = subprocess.Popen([sys.executable, "-c", script, str(work)], cwd=Path(__file__).parent)
        deadline = time.monotonic() + 120
        while not (work / "explainer.pt").exists():
            assert killed.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        state = Checkpoint(work).load("explainer")
        assert state is not None
        assert 0 < state["epoch"] < 60
        assert not state["finished"]
        with one_thread():
            whole = explainer(recipe=self.LONG).fit(X)
            resumed = explainer(recipe=self.LONG).fit(X, checkpoint=work)
        assert resumed.shap_values(X).tobytes() == whole.shap_values(X).tobytes()

    @pytest.mark.parametrize("value_function", ["surrogate", Marginal(8)], ids=["surrogate", "marginal"])
    @pytest.mark.parametrize("images", [X, Items(X, labelled)], ids=["tensor", "dataset"])
    def test_a_run_that_is_interrupted_often_gives_the_same_bytes(
        self, images: Any, value_function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = explainer(value_function=value_function).fit(images)
        save = Checkpoint.save
        names = []

        def interrupted(self: Checkpoint, name: str, state: dict[str, Any]) -> None:
            save(self, name, state)
            names.append(name)
            if names.count(name) in (1, 7):  # the first save, and one in the middle of training
                raise KeyboardInterrupt

        monkeypatch.setattr(fastshapley.training.checkpoint, "SAVE_INTERVAL", -1.0)
        monkeypatch.setattr(Checkpoint, "save", interrupted)
        resumed = None
        for _ in range(20):
            try:
                resumed = explainer(value_function=value_function).fit(images, checkpoint=tmp_path)
                break
            except KeyboardInterrupt:
                continue
        assert resumed is not None
        assert {"explainer", "examination", "plan", "coalitions 0"} <= set(names)
        assert ("surrogate" in names) == (value_function == "surrogate")
        assert resumed.shap_values(X).tobytes() == whole.shap_values(X).tobytes()

    def test_a_checkpoint_of_another_run_raises(self, tmp_path: Path) -> None:
        explainer(value_function="baseline").fit(X, checkpoint=tmp_path)
        for options in (
            {"players": Superpixels(grid=4)},
            {"players": Superpixels(grid=2, fill=0.5)},
            {"players": Superpixels(segmentation=BINS)},
            {"network": UNet(16)},
            {"model": network(seed=4)},
            {"logits": False},
        ):
            with pytest.raises(TrainingError, match="another model or other settings"):
                explainer(**{"value_function": "baseline", **options}).fit(X, checkpoint=tmp_path)
        with pytest.raises(TrainingError, match="other data"):
            explainer(value_function="baseline").fit(X.flip(3), checkpoint=tmp_path)

    def test_a_checkpoint_with_another_segmentation_raises(self, tmp_path: Path) -> None:
        """The segmentation has enough pixels that numpy abbreviates it in text."""
        images = torch.rand(8, 1, 32, 32, generator=torch.Generator().manual_seed(0))
        halves = np.repeat([0, 1], 512).reshape(32, 32)
        other = halves.copy()
        other[10:20, 10:20] = 2
        brief = replace(QUICK, explainer=replace(BRIEF, steps=2))
        options = {"model": nn.Sequential(nn.Conv2d(1, 2, 32), nn.Flatten()), "value_function": "baseline"}
        for segmentation in (halves, other):
            fit = explainer(
                **options, players=Superpixels(segmentation=segmentation), network=UNet(16), recipe=brief
            )
            if segmentation is halves:
                fit.fit(images, checkpoint=tmp_path)
        with pytest.raises(TrainingError, match="other settings"):
            fit.fit(images, checkpoint=tmp_path)

    def test_a_checkpoint_with_other_initial_weights_raises(self, tmp_path: Path) -> None:
        explainer(value_function="baseline", network=Backbone(network=network(seed=1))).fit(X, checkpoint=tmp_path)
        other = Backbone(network=network(seed=2))
        with pytest.raises(TrainingError, match="other settings"):
            explainer(value_function="baseline", network=other).fit(X, checkpoint=tmp_path)
