"""Tests of explainer files: saving, loading, and errors for other files."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Exported
from games import Additive
from problems import QUICK, explainer, numbers, people, people_chances
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn

from fastshapley import FastSHAP, Groups
from fastshapley.errors import FileFormatError, InputError, ModelError
from fastshapley.networks import Perceptron, PlayerPerceptron
from fastshapley.value_functions import Baseline, Marginal, Surrogate
from fastshapley.value_functions.conditional import Conditional


def score(frame: pd.DataFrame) -> Any:
    return (frame["job"] == "chef").to_numpy() + frame["age"].to_numpy() / 50


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return people()[0]


@pytest.fixture(scope="module")
def saved(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> tuple[FastSHAP, Path]:
    path = tmp_path_factory.mktemp("files") / "people.fastshap"
    fitted = explainer(score).fit(frame)
    fitted.save(path)
    return fitted, path


def parts_of(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the configuration and the tensors of a file."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["fastshapley"])
        return config, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)


def write_unchecked(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write a file of the format before digests."""
    old = {name: value for name, value in config.items() if name != "sha256"} | {"format": 2}
    save_file(tensors, path, {"fastshapley": json.dumps(old)})


def test_values_are_bit_identical_after_loading_in_a_new_process(
    saved: tuple[FastSHAP, Path], frame: pd.DataFrame, tmp_path: Path
) -> None:
    fitted, path = saved
    frame.to_pickle(tmp_path / "frame.pkl")
    script = (
        "import sys, numpy as np, pandas as pd, torch; from fastshapley import FastSHAP; torch.set_num_threads(1);"
        "np.save(sys.argv[3], FastSHAP.load(sys.argv[1]).shap_values(pd.read_pickle(sys.argv[2])))"
    )
    files = [str(path), str(tmp_path / "frame.pkl"), str(tmp_path / "values.npy")]
    subprocess.run([sys.executable, "-c", script, *files], check=True)
    assert np.load(files[2]).tobytes() == fitted.shap_values(frame).tobytes()


def test_report_recipe_names_and_estimates_are_loaded(saved: tuple[FastSHAP, Path], frame: pd.DataFrame) -> None:
    fitted, path = saved
    state = torch.get_rng_state()
    loaded = FastSHAP.load(path)
    assert torch.equal(state, torch.get_rng_state())
    assert loaded.report_ == fitted.report_
    assert loaded.recipe == fitted.recipe
    assert list(loaded.feature_names_in_) == list(fitted.feature_names_in_)
    assert loaded.output_names_ == fitted.output_names_
    np.testing.assert_array_equal(loaded.estimate(frame[:4]).values, fitted.estimate(frame[:4]).values)


@pytest.mark.parametrize(
    "options",
    [
        {"value_function": Marginal(20)},
        {"value_function": Baseline()},
        {"link": "logit"},
        {"normalize": "never"},
        {"players": Groups({"pair": [0, 2]})},
        {"recipe": "paper"},
    ],
    ids=str,
)
def test_every_kind_of_game_can_be_saved_and_loaded(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    import problems

    from fastshapley.training import recipes

    short = dataclasses.replace(problems.QUICK, targets=None)
    monkeypatch.setattr(recipes, "paper", lambda: short)
    X = numbers()
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    fitted = explainer(model, **options).fit(X)
    fitted.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file", model=model)
    assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()
    assert loaded.player_names_ == fitted.player_names_
    assert loaded.normalize == fitted.normalize
    refitted = FastSHAP(**{**loaded.get_params(deep=False), "progress": False, "random_state": 0}).fit(X)
    assert refitted.shap_values(X).shape == fitted.shap_values(X).shape


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("players", [None, Groups({"work": ["job", "income"]})], ids=["columns", "groups"])
@pytest.mark.parametrize("own_units", [0, 3])
def test_every_kind_of_network_body_can_be_saved_and_loaded(
    frame: pd.DataFrame, tmp_path: Path, own_units: int, players: Groups | None, classes: int
) -> None:
    """The table has categories and gaps. For two classes, the network learns one of them."""

    def model(rows: pd.DataFrame) -> Any:
        odds = np.stack([np.ones(len(rows)), np.exp(score(rows)), np.exp(-score(rows))], axis=1)[:, :classes]
        return score(rows) if classes == 1 else odds / odds.sum(1, keepdims=True)

    recipe = replace(QUICK, own_units=own_units)
    fitted = explainer(model, players=players, recipe=recipe).fit(frame)
    assert type(fitted.network_.body) is (PlayerPerceptron if own_units else Perceptron)
    assert fitted.network_.classes == {1: "free", 2: "mirror", 3: "zero-sum"}[classes]
    fitted.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file")
    assert type(loaded.network_.body) is type(fitted.network_.body)
    assert loaded.network_.body.config == fitted.network_.body.config
    assert loaded.recipe == recipe
    assert loaded.shap_values(frame).tobytes() == fitted.shap_values(frame).tobytes()


def test_a_file_from_before_own_units_can_be_loaded(
    saved: tuple[FastSHAP, Path], frame: pd.DataFrame, tmp_path: Path
) -> None:
    """The recipe in such a file does not contain ``own_units``, and the body is a plain perceptron."""
    fitted, path = saved
    config, tensors = parts_of(path)
    del config["recipe"]["own_units"]
    write_unchecked(tmp_path / "old", config, tensors)
    loaded = FastSHAP.load(tmp_path / "old")
    assert loaded.recipe == fitted.recipe
    assert loaded.shap_values(frame).tobytes() == fitted.shap_values(frame).tobytes()


def test_explaining_without_the_model_that_the_game_calls_raises(tmp_path: Path) -> None:
    X = numbers()
    model = LinearRegression().fit(X, X[:, 0])
    explainer(model, value_function="marginal").fit(X).save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file")
    with pytest.raises(ModelError, match=r"marginal .*load\(path, model=model\)"):
        loaded(X)


@pytest.mark.parametrize("value_function", ["marginal", "baseline"])
def test_fitting_without_the_model_that_the_game_calls_raises(value_function: str, tmp_path: Path) -> None:
    X = numbers()
    model = LinearRegression().fit(X, X[:, 0])
    explainer(model, value_function=value_function).fit(X).save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file").set_params(progress=False)
    with pytest.raises(ValueError, match="model is None: pass the model to explain"):
        loaded.fit(X)


def test_loading_without_the_networks_of_the_user_raises(tmp_path: Path) -> None:
    X = numbers()
    surrogate = Surrogate(nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1)))
    fitted = explainer(lambda rows: rows[:, 0], network=nn.Linear(4, 4), value_function=surrogate).fit(X)
    fitted.save(tmp_path / "file")
    with pytest.raises(FileFormatError, match="pass it as network="):
        FastSHAP.load(tmp_path / "file")
    bodies: dict[str, Any] = {
        "network": nn.Linear(4, 4),
        "value_function": nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1)),
    }
    loaded = FastSHAP.load(tmp_path / "file", **bodies)
    assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()


def test_loading_without_the_game_of_the_user_raises(tmp_path: Path) -> None:
    X = numbers(columns=3)
    game = Additive(players=3)
    fitted = explainer(None, value_function=game).fit(X)
    fitted.save(tmp_path / "file")
    with pytest.raises(FileFormatError, match="pass it as value_function="):
        FastSHAP.load(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file", value_function=game)
    assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved: tuple[FastSHAP, Path], tmp_path: Path, share: float) -> None:
    data = saved[1].read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(share * len(data))])
    with pytest.raises(FileFormatError, match="cut short"):
        FastSHAP.load(tmp_path / "cut")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(FileFormatError, match="is a safetensors file, but not one"):
        FastSHAP.load(tmp_path / "other.safetensors")
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(FileFormatError, match="not an explainer file"):
        FastSHAP.load(tmp_path / "model.pkl")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        FastSHAP.load(tmp_path / "absent")


def test_a_newer_format_is_refused(saved: tuple[FastSHAP, Path], tmp_path: Path) -> None:
    config = json.dumps({"format": 99, "version": "9.0"})
    save_file({"a": torch.zeros(1)}, tmp_path / "new", {"fastshapley": config})
    with pytest.raises(FileFormatError, match=r"fastshapley 9.0 in format 99.*upgrade"):
        FastSHAP.load(tmp_path / "new")


def test_a_save_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    X = pd.DataFrame({"a": [1.0, 2, 3, 4, 5], "b": pd.cut(pd.Series([1, 2, 3, 4, 5]), 2)})
    fitted = explainer(lambda rows: rows["a"].to_numpy()).fit(X)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match="column 'b' has a name or categories that cannot be saved"):
        fitted.save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_loaded_explainer_can_be_fitted_to_another_model(
    saved: tuple[FastSHAP, Path], frame: pd.DataFrame
) -> None:
    """The fit does not use the game in the file, which belongs to the old model."""

    def other(rows: pd.DataFrame) -> Any:
        return rows["age"].to_numpy() / 10

    loaded = FastSHAP.load(saved[1]).set_params(model=other, recipe=QUICK, progress=False).fit(frame)
    fresh = explainer(other).fit(frame)
    assert loaded.value_function == "surrogate"
    np.testing.assert_array_equal(loaded.shap_values(frame[:20]), fresh.shap_values(frame[:20]))


def test_the_seed_is_saved(saved: tuple[FastSHAP, Path]) -> None:
    assert FastSHAP.load(saved[1]).random_state == saved[0].random_state == 0


class Dribble(io.BytesIO):
    """A stream that returns at most 1000 bytes per read, as a pipe may do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(1000, size) if size is not None and size > 0 else size)


def test_streams_with_short_reads_can_be_loaded(saved: tuple[FastSHAP, Path], frame: pd.DataFrame) -> None:
    loaded = FastSHAP.load(Dribble(saved[1].read_bytes()))
    np.testing.assert_array_equal(loaded.shap_values(frame[:5]), saved[0].shap_values(frame[:5]))


@pytest.mark.parametrize("end", [2**62, 10**20, "4", None])
def test_a_header_that_announces_too_many_bytes_is_refused(end: Any) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, end]}}).encode()
    with pytest.raises(FileFormatError, match="cut short, damaged"):
        FastSHAP.load(io.BytesIO(len(header).to_bytes(8, "little") + header))


def test_a_fit_after_loading_has_the_same_players(tmp_path: Path) -> None:
    """The column labels are numbers that differ from the positions, and one group has one column."""
    X = pd.DataFrame(numbers(100, 4), columns=[3, 2, 1, 0])

    def model(rows: pd.DataFrame) -> Any:
        return rows.to_numpy()[:, 0]

    fitted = explainer(model, players=Groups({"pair": [3, 2], "alone": [1]})).fit(X)
    fitted.set_params(random_state=np.int64(7)).save(tmp_path / "it")
    loaded = FastSHAP.load(tmp_path / "it", model)
    assert loaded.random_state == 7
    assert loaded.players == Groups({"pair": ["3", "2"], "alone": ["1"]})
    again = loaded.set_params(recipe=QUICK, progress=False).fit(X)
    assert again.partition_ == fitted.partition_


def test_an_onnx_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it.onnx").write_bytes(b"\x08\x08\x12\x07pytorch" * 20)
    with pytest.raises(FileFormatError, match=r"it\.onnx is a graph, for serve and page"):
        FastSHAP.load(tmp_path / "it.onnx")


@pytest.mark.parametrize("model", [None, people_chances], ids=["without model", "with model"])
def test_a_conditional_game_is_saved_again_as_the_same_bytes(
    conditional: Exported, model: Any, tmp_path: Path
) -> None:
    loaded = FastSHAP.load(conditional.saved, model)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == conditional.saved.read_bytes()


def test_a_conditional_game_with_its_model_has_the_same_values_after_loading(conditional: Exported) -> None:
    loaded, X = FastSHAP.load(conditional.saved, people_chances), conditional.X[:20]
    fitted = conditional.explainer
    assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()
    np.testing.assert_array_equal(loaded.estimate(X[:2]).values, fitted.estimate(X[:2]).values)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_file_of_a_conditional_game_is_refused(
    conditional: Exported, tmp_path: Path, share: float
) -> None:
    data = conditional.saved.read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(share * len(data))])
    with pytest.raises(FileFormatError, match="cut short"):
        FastSHAP.load(tmp_path / "cut")


def test_a_file_of_a_conditional_game_without_one_of_its_tensors_is_refused(
    conditional: Exported, tmp_path: Path
) -> None:
    config, tensors = parts_of(conditional.saved)
    # The first files do not have these.
    optional = {"value_function.surrogate.model_null"}
    optional |= {f"errors.{name}" for name in ("noise_scale", "game", "low", "high")}
    assert {"value_function.rows", "value_function.surrogate.null", "reference.gaps"} < tensors.keys()
    for name in tensors.keys() - optional:
        write_unchecked(tmp_path / "file", config, {key: tensors[key] for key in tensors.keys() - {name}})
        with pytest.raises(FileFormatError, match=r"lacks the tensor|has weights of|is damaged"):
            FastSHAP.load(tmp_path / "file")


def test_a_sampler_of_the_user_must_be_passed_again(tmp_path: Path) -> None:
    X = numbers()

    def sample(x: torch.Tensor, s: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.where(s, x, torch.randn(x.shape, generator=generator, dtype=x.dtype))

    def model(rows: Any) -> Any:
        return rows[:, 0] * rows[:, 1]

    fitted = explainer(model, value_function=Conditional(sample)).fit(X)
    fitted.save(tmp_path / "file")
    with pytest.raises(FileFormatError, match="sampler is a function of your own: pass it as value_function="):
        FastSHAP.load(tmp_path / "file", model)
    for given in (sample, Conditional(sample)):
        loaded = FastSHAP.load(tmp_path / "file", model, value_function=given)
        assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()
        np.testing.assert_array_equal(loaded.estimate(X[:2]).values, fitted.estimate(X[:2]).values)


def test_a_file_with_a_flipped_bit_is_refused(exported: Exported) -> None:
    """A file without a digest gives other values for a quarter of these, some of them up to 1e35."""
    data, choose = exported.saved.read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(data[:8], "little")
    assert len(data) > 2 * header
    for start, end in ((0, 8), (8, header), (header, len(data))):
        for _ in range(40):
            damaged = bytearray(data)
            damaged[choose.randrange(start, end)] ^= 1 << choose.randrange(8)
            with pytest.raises(FileFormatError):
                FastSHAP.load(io.BytesIO(damaged))


@pytest.mark.parametrize("name", ["mean", "weight", "sample"])
def test_a_file_with_another_number_in_a_tensor_is_refused(exported: Exported, tmp_path: Path, name: str) -> None:
    config, tensors = parts_of(exported.saved)
    changed = next(tensor for key, tensor in tensors.items() if key.endswith(name) and tensor.is_floating_point())
    changed.view(-1)[0] += 1
    save_file(tensors, tmp_path / "file", {"fastshapley": json.dumps(config)})
    with pytest.raises(FileFormatError, match=r"file is damaged: .*the SHA-256 digest differs"):
        FastSHAP.load(tmp_path / "file")


def test_a_file_of_the_new_format_needs_its_digest(exported: Exported, tmp_path: Path) -> None:
    config, tensors = parts_of(exported.saved)
    del config["sha256"]
    save_file(tensors, tmp_path / "file", {"fastshapley": json.dumps(config)})
    with pytest.raises(FileFormatError, match="digest differs"):
        FastSHAP.load(tmp_path / "file")


def test_a_file_from_before_digests_can_be_loaded(exported: Exported, tmp_path: Path) -> None:
    write_unchecked(tmp_path / "old", *parts_of(exported.saved))
    values = FastSHAP.load(tmp_path / "old").shap_values(exported.X)
    assert values.tobytes() == exported.explainer.shap_values(exported.X).tobytes()


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in nested JSON values, as a container and a key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@pytest.mark.parametrize("part", ["schema", "players", "network", "value_function", "report", "recipe"])
@pytest.mark.parametrize("wrong", [None, "text", -1, 10**9, 10**30, [], {}, [[1]], "absent"], ids=str)
def test_damage_in_a_file_without_a_digest_is_an_error_of_the_file_or_of_the_input(
    exported: Exported, part: str, wrong: Any, tmp_path: Path
) -> None:
    """Nothing is built that is larger than the file."""
    config, tensors = parts_of(exported.saved)
    text = json.dumps(config)
    number = len(places(config[part]))
    for i in random.Random(0).sample(range(number), min(number, 12)):
        damaged = json.loads(text)
        container, key = places(damaged[part])[i]
        if wrong == "absent" and isinstance(container, dict):
            del container[key]
        else:
            container[key] = wrong
        write_unchecked(tmp_path / "file", damaged, tensors)
        with suppress(FileFormatError, InputError):
            FastSHAP.load(tmp_path / "file")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": null}', '{"format": 2}', "[" * 100_000])
def test_a_configuration_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "file", {"fastshapley": text})
    with pytest.raises(FileFormatError, match="damaged"):
        FastSHAP.load(tmp_path / "file")


@pytest.mark.parametrize("size", ["layers", "width", "inputs", "outputs"])
@pytest.mark.parametrize("number", [10**9, 5000, 3.5, "many", None], ids=str)
def test_a_network_that_is_larger_than_its_file_is_refused(
    exported: Exported, size: str, number: Any, tmp_path: Path
) -> None:
    config, tensors = parts_of(exported.saved)
    config["value_function"]["layers"][size] = number
    write_unchecked(tmp_path / "file", config, tensors)
    with pytest.raises(FileFormatError, match=r"damaged|not the network"):
        FastSHAP.load(tmp_path / "file")


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    "part", ["network.body", "network.scale", "errors.", "value_function.network.body", "value_function.null"]
)
def test_weights_that_are_not_finite_are_refused(
    exported: Exported, part: str, number: float, tmp_path: Path
) -> None:
    config, tensors = parts_of(exported.saved)
    chosen = next(
        tensor for name, tensor in tensors.items() if name.startswith(part) and name.endswith(("weight", part))
    )
    chosen.view(-1)[0] = number
    write_unchecked(tmp_path / "file", config, tensors)
    with pytest.raises(FileFormatError, match=r"file: the file is damaged: .* not finite"):
        FastSHAP.load(tmp_path / "file")


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_saved_file_has_the_mode_of_other_files(saved: tuple[FastSHAP, Path], tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    (tmp_path / "link").symlink_to("file")
    saved[0].save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
