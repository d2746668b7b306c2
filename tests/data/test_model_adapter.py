"""Tests of ModelFunction: it returns what the model returns, and refuses other objects with a clear message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import catboost
import lightgbm
import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

from fastshapley.data import model_adapter as models
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import Table, TableSchema
from fastshapley.errors import ModelError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
BINARY = (X[:, 0] + X[:, 1] > 0).astype(int)
THREE = np.digitize(X[:, 0] + X[:, 2], [-0.7, 0.7])
REAL = X[:, 0] * X[:, 1]
FRAME = pd.DataFrame(X, columns=["a", "b", "c", "d"])
PEOPLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, 90),
        "pay": X[:, 0],
        "member": RNG.random(90) < 0.5,
        "job": RNG.choice(["clerk", "chef", "pilot"], 90),
        "tier": pd.Categorical(RNG.choice(["low", "high"], 90), categories=["low", "mid", "high"], ordered=True),
    }
)
CATEGORICAL = PEOPLE.astype({"job": "category"})

XGB: dict[str, Any] = {"max_depth": 3, "nthread": 1}
LGBM: dict[str, Any] = {"min_data_in_leaf": 5, "num_threads": 1, "verbose": -1}
CAT: dict[str, Any] = {"iterations": 3, "thread_count": 1, "verbose": False, "allow_writing_files": False}


def wrap(model: Any, rows: Table = X) -> tuple[ModelFunction, Tensor]:
    """The model as a function, and its outputs on the rows."""
    schema = TableSchema.of(rows)
    encoded = schema.encode(rows)
    function = ModelFunction(model, schema, encoded[:16])
    return function, function(encoded)


class Case(NamedTuple):
    """A fitted model, the rows it takes, and how a user calls it directly."""

    fit: Callable[[], Any]
    by_hand: Callable[[Any, Any], Any]
    scale: str
    outputs: int
    rows: Table = X


def proba(model: Any, rows: Any) -> Any:
    return model.predict_proba(rows)


def predict(model: Any, rows: Any) -> Any:
    return model.predict(rows)


def on_matrix(model: Any, rows: Any) -> Any:
    return model.predict(xgboost.DMatrix(rows, enable_categorical=True))


def as_probability(model: Any, rows: Any) -> Any:
    return model.predict(rows, prediction_type="Probability")


def xgb(objective: str, y: Any, rows: Any = X, **more: Any) -> Any:
    data = xgboost.DMatrix(rows, y, enable_categorical=True)
    return xgboost.train({"objective": objective, **XGB, **more}, data, 3)


def lgbm(objective: str, y: Any, rows: Any = X, **more: Any) -> Any:
    return lightgbm.train({"objective": objective, **LGBM, **more}, lightgbm.Dataset(rows, y), 3)


def cat(loss: str, y: Any, rows: Any = X, **more: Any) -> Any:
    return catboost.CatBoost({"loss_function": loss, **CAT, **more}).fit(rows, y)


def pipeline() -> Any:
    text = ColumnTransformer([("text", OneHotEncoder(), ["job", "tier"])], remainder=StandardScaler())
    return make_pipeline(text, LogisticRegression())


PS, P, R = "probabilities", "probability", "real"
CASES = {
    "sklearn binary": Case(lambda: LogisticRegression().fit(X, BINARY), proba, PS, 2),
    "sklearn multiclass": Case(lambda: DecisionTreeClassifier(max_depth=3).fit(X, THREE), proba, PS, 3),
    "sklearn regressor": Case(lambda: LinearRegression().fit(X, REAL), predict, R, 1),
    "sklearn two targets": Case(lambda: LinearRegression().fit(X, X[:, :2]), predict, R, 2),
    "sklearn forest, frame": Case(
        lambda: RandomForestClassifier(3, n_jobs=1, random_state=0).fit(FRAME, BINARY), proba, PS, 2, FRAME
    ),
    "sklearn pipeline": Case(lambda: pipeline().fit(PEOPLE, BINARY), proba, PS, 2, PEOPLE),
    "XGBClassifier": Case(lambda: xgboost.XGBClassifier(n_estimators=3, **XGB).fit(X, BINARY), proba, PS, 2),
    "XGBClassifier, three": Case(lambda: xgboost.XGBClassifier(n_estimators=3, **XGB).fit(X, THREE), proba, PS, 3),
    "XGBClassifier, frame": Case(
        lambda: xgboost.XGBClassifier(n_estimators=3, **XGB).fit(FRAME, BINARY), proba, PS, 2, FRAME
    ),
    "XGBClassifier, categories": Case(
        lambda: xgboost.XGBClassifier(n_estimators=3, enable_categorical=True, **XGB).fit(CATEGORICAL, BINARY),
        proba,
        PS,
        2,
        CATEGORICAL,
    ),
    "XGBRegressor": Case(lambda: xgboost.XGBRegressor(n_estimators=3, **XGB).fit(X, REAL), predict, R, 1),
    "XGBRegressor, two targets": Case(
        lambda: xgboost.XGBRegressor(n_estimators=3, **XGB).fit(X, X[:, :2]), predict, R, 2
    ),
    "xgboost.Booster binary": Case(lambda: xgb("binary:logistic", BINARY), on_matrix, P, 1),
    "xgboost.Booster softprob": Case(lambda: xgb("multi:softprob", THREE, num_class=3), on_matrix, PS, 3),
    "xgboost.Booster regression": Case(lambda: xgb("reg:squarederror", REAL), on_matrix, R, 1),
    "xgboost.Booster margins": Case(lambda: xgb("binary:logitraw", BINARY), on_matrix, R, 1),
    "xgboost.Booster, frame": Case(lambda: xgb("binary:logistic", BINARY, FRAME), on_matrix, P, 1, FRAME),
    "xgboost.Booster, categories": Case(
        lambda: xgb("binary:logistic", BINARY, CATEGORICAL), on_matrix, P, 1, CATEGORICAL
    ),
    "LGBMClassifier": Case(lambda: lightgbm.LGBMClassifier(n_estimators=3, **LGBM).fit(X, BINARY), proba, PS, 2),
    "LGBMClassifier, three": Case(
        lambda: lightgbm.LGBMClassifier(n_estimators=3, **LGBM).fit(FRAME, THREE), proba, PS, 3, FRAME
    ),
    "LGBMClassifier, categories": Case(
        lambda: lightgbm.LGBMClassifier(n_estimators=3, **LGBM).fit(CATEGORICAL, BINARY), proba, PS, 2, CATEGORICAL
    ),
    "LGBMRegressor": Case(lambda: lightgbm.LGBMRegressor(n_estimators=3, **LGBM).fit(X, REAL), predict, R, 1),
    "lightgbm.Booster binary": Case(lambda: lgbm("binary", BINARY), predict, P, 1),
    "lightgbm.Booster multiclass": Case(lambda: lgbm("multiclass", THREE, num_class=3), predict, PS, 3),
    "lightgbm.Booster regression": Case(lambda: lgbm("regression", REAL), predict, R, 1),
    "lightgbm.Booster, categories": Case(lambda: lgbm("binary", BINARY, CATEGORICAL), predict, P, 1, CATEGORICAL),
    "CatBoostClassifier": Case(lambda: catboost.CatBoostClassifier(**CAT).fit(X, BINARY), proba, PS, 2),
    "CatBoostClassifier, three": Case(lambda: catboost.CatBoostClassifier(**CAT).fit(X, THREE), proba, PS, 3),
    "CatBoostClassifier, strings": Case(
        lambda: catboost.CatBoostClassifier(cat_features=["job", "tier"], **CAT).fit(PEOPLE, BINARY),
        proba,
        PS,
        2,
        PEOPLE,
    ),
    "CatBoostClassifier, one against all": Case(
        lambda: catboost.CatBoostClassifier(loss_function="MultiClassOneVsAll", **CAT).fit(X, THREE), proba, R, 3
    ),
    "CatBoostRegressor": Case(lambda: catboost.CatBoostRegressor(**CAT).fit(X, REAL), predict, R, 1),
    "catboost.CatBoost Logloss": Case(lambda: cat("Logloss", BINARY), as_probability, PS, 2),
    "catboost.CatBoost MultiClass": Case(lambda: cat("MultiClass", THREE), as_probability, PS, 3),
    "catboost.CatBoost RMSE": Case(lambda: cat("RMSE", REAL), predict, R, 1),
    "catboost.CatBoost, strings": Case(
        lambda: cat("Logloss", BINARY, PEOPLE, cat_features=["job", "tier"]), as_probability, PS, 2, PEOPLE
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_outputs_equal_those_of_calling_the_model_directly(case: Case) -> None:
    model = case.fit()
    function, outputs = wrap(model, case.rows)
    by_hand = np.asarray(case.by_hand(model, case.rows), dtype=np.float64).reshape(len(X), -1)
    assert outputs.dtype == torch.float64
    np.testing.assert_array_equal(outputs.numpy(), by_hand)
    assert len(np.unique(by_hand[:, 0])) > 2  # the model is not constant
    assert (function.scale, function.outputs) == (case.scale, case.outputs)


@pytest.mark.parametrize(
    "fit",
    [
        lambda: LogisticRegression().fit(X, BINARY),
        lambda: xgb("binary:logistic", BINARY),
        lambda: lgbm("binary", BINARY),
        lambda: catboost.CatBoostClassifier(**CAT).fit(X, BINARY),
    ],
    ids=["sklearn", "xgboost", "lightgbm", "catboost"],
)
def test_an_estimator_can_be_explained_on_a_tensor(fit: Callable[[], Any]) -> None:
    model = fit()
    assert torch.equal(wrap(model, torch.from_numpy(X))[1], wrap(model, X)[1])


def test_model_is_called_with_the_table_type_of_the_user() -> None:
    def model(rows: pd.DataFrame) -> NDArray[np.float64]:
        assert isinstance(rows, pd.DataFrame)
        assert rows.dtypes.equals(PEOPLE.dtypes)
        return rows["age"].to_numpy(float)

    _, outputs = wrap(model, PEOPLE)
    assert outputs[:, 0].tolist() == PEOPLE["age"].tolist()


def test_outputs_are_named_after_the_columns_of_the_frame_that_the_model_returns() -> None:
    def model(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"cost": np.full(len(rows), 0.5), "time": np.full(len(rows), 2.5)})

    assert wrap(model)[0].output_names == ("cost", "time")
    assert wrap(lambda rows: model(rows).set_axis(["same", "same"], axis=1))[0].output_names == (
        "output 0",
        "output 1",
    )
    assert wrap(lambda rows: model(rows)["cost"])[0].output_names == ("output 0",)


def test_outputs_are_named_after_the_classes() -> None:
    labels = np.array(["no", "yes"])[BINARY]
    assert wrap(LogisticRegression().fit(X, labels))[0].output_names == ("no", "yes")
    assert wrap(LinearRegression().fit(X, X[:, :2]))[0].output_names == ("output 0", "output 1")
    assert wrap(catboost.CatBoostRegressor(**CAT).fit(X, REAL))[0].output_names == ("output 0",)


def test_multilabel_probabilities_are_not_one_distribution() -> None:
    labels = np.stack([BINARY, BINARY, 1 - BINARY], 1)

    class Labels(BaseEstimator):  # type: ignore[misc]
        def predict_proba(self, rows: Any) -> NDArray[np.float64]:
            return labels[: len(rows)] * 0.9

    assert wrap(Labels())[0].scale == "real"


# functions


RETURNS: dict[str, tuple[Callable[[Any], Any], NDArray[np.float64]]] = {
    "(n,)": (lambda rows: rows[:, 0], X[:, :1]),
    "(n, 1)": (lambda rows: rows[:, :1], X[:, :1]),
    "(n, K)": (lambda rows: rows[:, :3], X[:, :3]),
    "float32": (lambda rows: rows.astype(np.float32), X.astype(np.float32).astype(np.float64)),
    "not contiguous": (lambda rows: rows[:, ::-2], X[:, ::-2]),
    "list": (lambda rows: rows[:, 0].tolist(), X[:, :1]),
    "list of lists": (lambda rows: rows.tolist(), X),
    "list of arrays": (lambda rows: list(rows), X),
    "tensor": (lambda rows: torch.from_numpy(rows).requires_grad_()[:, 0], X[:, :1]),
    "bfloat16 tensor": (lambda rows: torch.ones(len(rows), 2, dtype=torch.bfloat16), np.ones((90, 2))),
    "Series": (lambda rows: pd.Series(rows[:, 0], dtype="Float64"), X[:, :1]),
    "DataFrame": (lambda rows: pd.DataFrame(rows), X),
}


@pytest.mark.parametrize(("model", "expected"), RETURNS.values(), ids=RETURNS.keys())
def test_functions_may_return_any_array_type(model: Callable[[Any], Any], expected: NDArray[np.float64]) -> None:
    function, outputs = wrap(model)
    np.testing.assert_array_equal(outputs.numpy(), expected)
    assert function.scale == "real"


def test_nonnegative_outputs_that_sum_to_one_are_probabilities() -> None:
    function, _ = wrap(lambda rows: np.stack([rows[:, 0] > 0, rows[:, 0] <= 0], 1).astype(float))
    assert function.scale == "probabilities"
    function, _ = wrap(lambda rows: np.stack([rows[:, 0], 1 - rows[:, 0]], 1))
    assert function.scale == "real"


def test_any_object_with_predict_is_a_model() -> None:
    class Sum:
        def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
            return rows.sum(1)

    np.testing.assert_array_equal(wrap(Sum())[1][:, 0].numpy(), X.sum(1))


def test_a_bound_method_is_a_model() -> None:
    model = LinearSVC().fit(X, BINARY)
    np.testing.assert_array_equal(wrap(model.decision_function)[1][:, 0].numpy(), model.decision_function(X))


def test_integer_outputs_of_a_regressor_become_floats() -> None:
    class Counts(LinearRegression):  # type: ignore[misc]
        def predict(self, rows: Any) -> Any:
            return np.round(super().predict(rows)).astype(int)

    assert wrap(Counts().fit(X, 10 * REAL))[1].dtype == torch.float64


def test_a_model_that_modifies_its_input_does_not_change_the_encoded_rows() -> None:
    def model(rows: Tensor) -> Tensor:
        return rows.mul_(2).sum(1)

    encoded = torch.from_numpy(X.copy())
    ModelFunction(model, TableSchema.of(encoded), encoded)(encoded)
    np.testing.assert_array_equal(encoded.numpy(), X)


# batches


def test_many_rows_are_evaluated_in_batches_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "BATCH_ROWS", 40)
    calls: list[int] = []

    def model(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        calls.append(len(rows))
        return rows[:, 0]

    function, outputs = wrap(model)
    assert calls == [16, 40, 40, 10]
    assert function.evaluations == sum(calls)
    np.testing.assert_array_equal(outputs[:, 0].numpy(), X[:, 0])


def test_batches_are_large_but_bounded() -> None:
    sizes: list[int] = []
    schema = TableSchema.of(X)

    def model(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        sizes.append(len(rows))
        return rows[:, 0]

    ModelFunction(model, schema, schema.encode(X))(torch.zeros(100_000, 4, dtype=torch.float64))
    assert 1000 < max(sizes) < 50_000


def test_the_model_is_not_called_for_an_empty_table() -> None:
    function, _ = wrap(LogisticRegression().fit(X, BINARY))
    before = function.evaluations
    assert function(torch.zeros(0, 4)).shape == (0, 2)
    assert function.evaluations == before


# torch.nn.Module


class Network(nn.Module):
    """A linear layer that records how it was called."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 3, dtype=dtype)
        self.dropout = nn.Dropout(0.9)
        self.calls: list[tuple[bool, bool, torch.dtype]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled(), rows.dtype))
        outputs: Tensor = self.dropout(self.linear(rows))
        return outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [X, FRAME, torch.from_numpy(X)], ids=["array", "frame", "tensor"])
def test_network_is_called_in_inference_mode_and_its_own_precision(dtype: torch.dtype, rows: Table) -> None:
    network = Network(dtype)
    _, outputs = wrap(network, rows)
    assert set(network.calls) == {(False, False, dtype)}
    by_hand = network.linear(torch.from_numpy(X).to(dtype)).detach().double()
    torch.testing.assert_close(outputs, by_hand, rtol=0, atol=0)


def test_network_keeps_its_training_modes() -> None:
    network = Network()
    network.linear.eval()  # a part that the user froze
    wrap(network)
    assert [module.training for module in (network, network.linear, network.dropout)] == [True, False, True]


def test_network_keeps_its_training_modes_when_it_fails() -> None:
    network = Network()
    with pytest.raises(ModelError, match=r"16 rows, a ndarray: RuntimeError: .*shapes"):
        wrap(network, X[:, :2])
    assert network.training
    assert network.dropout.training


def test_network_gets_nullable_numbers_with_gaps_as_nan() -> None:
    class Gaps(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows.isnan().float()

    frame = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": pd.array([True, False], "boolean")})
    assert wrap(Gaps(), frame)[1].tolist() == [[0, 0], [1, 0]]


def test_network_with_integer_inputs_gets_integers() -> None:
    assert wrap(nn.Sequential(nn.Embedding(3, 2), nn.Flatten()), torch.tensor([[0, 2], [1, 1]]))[0].outputs == 4


def test_a_network_refuses_text() -> None:
    with pytest.raises(ModelError, match="takes numbers, but X has columns of text: encode them"):
        wrap(Network(), PEOPLE)


# refused models


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        LinearRegression(),
        pipeline(),
        xgboost.XGBClassifier(),
        xgboost.XGBRegressor(),
        lightgbm.LGBMClassifier(),
        lightgbm.LGBMRegressor(),
        catboost.CatBoostClassifier(),
        catboost.CatBoostRegressor(),
        catboost.CatBoost(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_that_is_not_fitted_is_refused(model: Any) -> None:
    with pytest.raises(NotFittedError, match=f"{type(model).__name__} that is not fitted"):
        wrap(model)


def grows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """One output per row for the probe, and two for more rows."""
    return rows[:, : 1 if len(rows) <= 16 else 2]


def breaks(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    outputs = rows[:, 0].copy()
    outputs[3] = np.inf
    return outputs


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no model": (lambda: 3, "model is of type int: pass a fitted estimator"),
    "a class": (lambda: LogisticRegression, "model is the class LogisticRegression: pass a fitted estimator"),
    "no predict_proba": (lambda: LinearSVC().fit(X, BINARY), "LinearSVC, which has no predict_proba.*calibrate"),
    "no predict_proba in a pipeline": (
        lambda: make_pipeline(StandardScaler(), LinearSVC()).fit(X, BINARY),
        "no predict_proba",
    ),
    "a classifier's predict": (
        lambda: LogisticRegression().fit(X, BINARY).predict,
        "a classifier's predict, which returns labels: pass the classifier itself",
    ),
    "labels": (lambda: lambda rows: (rows[:, 0] > 0).astype(int), "int64 values.*class labels"),
    "booleans": (lambda: lambda rows: rows[:, 0] > 0, "bool values.*class labels"),
    "strings": (lambda: lambda rows: np.where(rows[:, 0] > 0, "yes", "no"), "class labels"),
    "objects": (lambda: lambda rows: [None] * len(rows), "object values"),
    "complex numbers": (lambda: lambda rows: rows[:, 0] * 1j, "complex128 values"),
    "XGBoost labels": (lambda: xgb("multi:softmax", THREE, num_class=3), "multi:softmax and returns labels"),
    "XGBoost hinge": (lambda: xgb("binary:hinge", BINARY), "binary:hinge and returns labels"),
    "several targets": (
        lambda: KNeighborsClassifier().fit(X, np.stack([BINARY, THREE], 1)),
        "list of 2 arrays, one for each target",
    ),
    "several targets, one model each": (
        lambda: MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([BINARY, THREE], 1)),
        "list of 2 arrays, one for each target",
    ),
    "infinite": (lambda: breaks, r"not finite \(\[inf\]\) for 1 of 16 rows"),
    "NaN": (lambda: lambda rows: np.full((len(rows), 2), np.nan), "not finite.* for 16 of 16 rows"),
    "changing width": (lambda: grows, "returned 2 outputs per row, and 1 before"),
    "masked": (lambda: lambda rows: np.ma.masked_less(rows[:, 0], 0), "a masked array with masked entries"),
    "too few rows": (lambda: lambda rows: rows[1:, 0], r"shape \(15,\) for 16 rows"),
    "one number": (lambda: lambda rows: rows.mean(), r"shape \(\) for 16 rows"),
    "no outputs": (lambda: lambda rows: rows[:, :0], r"shape \(16, 0\)"),
    "three dimensions": (lambda: lambda rows: rows[:, :, None], r"shape \(16, 4, 1\)"),
}


@pytest.mark.parametrize(("model", "message"), BAD.values(), ids=BAD.keys())
def test_models_that_cannot_be_explained_are_refused(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        wrap(model())


def test_probabilities_outside_0_to_1_are_refused() -> None:
    class Broken(LogisticRegression):  # type: ignore[misc]
        def predict_proba(self, rows: Any) -> Any:
            return super().predict_proba(rows) * 2

    with pytest.raises(ModelError, match=r"probabilities outside \[0, 1\]: from"):
        wrap(Broken().fit(X, BINARY))


# logits and images


IMAGES = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Logits(nn.Module):
    """Logits of images or rows, without the last axis if ``flat``."""

    def __init__(self, outputs: int, inputs: int = 64, flat: bool = False) -> None:
        super().__init__()
        self.linear, self.flat = nn.Linear(inputs, outputs), flat
        with torch.no_grad():
            self.linear.weight.normal_(generator=torch.Generator().manual_seed(0))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(images.flatten(1))
        return logits[:, 0] if self.flat else logits


def of_images(model: Any, images: Any = IMAGES, logits: bool = False) -> tuple[ModelFunction, Tensor]:
    schema = ImageSchema.of(images)
    encoded = schema.encode(images)
    function = ModelFunction(model, schema, encoded[:16], logits)
    return function, function(encoded)


@pytest.mark.parametrize("outputs", [2, 3])
def test_logits_of_several_classes_are_put_through_a_softmax(outputs: int) -> None:
    model = Logits(outputs)
    function, y = of_images(model, logits=True)
    assert (function.scale, function.outputs) == ("probabilities", outputs)
    torch.testing.assert_close(y, model(IMAGES).double().softmax(1))


@pytest.mark.parametrize("flat", [True, False])
def test_logits_of_a_single_output_are_put_through_a_sigmoid(flat: bool) -> None:
    model = Logits(1, flat=flat)
    function, y = of_images(model, logits=True)
    assert (function.scale, function.outputs) == ("probability", 1)
    torch.testing.assert_close(y[:, 0], model(IMAGES).double().sigmoid().flatten())


def test_a_network_for_tables_may_return_logits() -> None:
    model, schema = Logits(3, inputs=4), TableSchema.of(X)
    function = ModelFunction(model, schema, schema.encode(X), logits=True)
    by_hand = model(torch.from_numpy(X).float()).double().softmax(1)
    torch.testing.assert_close(function(schema.encode(X)), by_hand)


def test_extreme_logits_give_finite_probabilities() -> None:
    function, y = of_images(lambda images: 1e4 * (images.flatten(1)[:, :2] - 0.5), logits=True)
    assert function.scale == "probabilities"
    assert y.isfinite().all()
    torch.testing.assert_close(y.sum(1), torch.ones(len(y), dtype=torch.float64))


def test_outputs_are_not_transformed_unless_logits_is_true() -> None:
    model = Logits(3)
    assert of_images(model)[0].scale == "real"
    assert of_images(nn.Sequential(model, nn.Softmax(1)))[0].scale == "probabilities"


@pytest.mark.parametrize(
    "model", [LogisticRegression().fit(X, BINARY), LinearRegression().fit(X, REAL)], ids=["classifier", "regressor"]
)
def test_logits_of_an_estimator_are_refused(model: Any) -> None:
    schema = TableSchema.of(X)
    with pytest.raises(ModelError, match=f"logits is True, but a {type(model).__name__} does not return logits"):
        ModelFunction(model, schema, schema.encode(X), logits=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_network_accepts_images_in_an_array(dtype: Any) -> None:
    model = Logits(3)
    _, y = of_images(model, IMAGES.numpy().astype(dtype))
    torch.testing.assert_close(y, model(IMAGES).double())


@pytest.mark.parametrize("images", [IMAGES, IMAGES.double(), IMAGES.numpy(), IMAGES.double().numpy()])
def test_a_function_of_images_gets_the_container_and_dtype_of_the_user(images: Any) -> None:
    seen = set()

    def model(batch: Any) -> Any:
        seen.add((type(batch), batch.dtype, tuple(batch.shape[1:])))
        return batch.mean((1, 2, 3))

    _, y = of_images(model, images)
    assert seen == {(type(images), images.dtype, (1, 8, 8))}
    np.testing.assert_allclose(y[:, 0].numpy(), images.mean((1, 2, 3)), rtol=1e-5)


def test_images_are_evaluated_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def model(batch: Tensor) -> Tensor:
        sizes.append(len(batch))
        return batch.mean((1, 2, 3))

    monkeypatch.setattr(models, "BATCH_ENTRIES", 64 * 18)
    assert of_images(model)[1].shape == (40, 1)
    assert sizes == [16, 18, 18, 4]


def test_the_error_of_a_model_that_fails_on_images_is_quoted() -> None:
    with pytest.raises(ModelError, match=r"model failed on 16 rows, a Tensor: RuntimeError: .*channels"):
        of_images(nn.Conv2d(3, 1, 3))


def test_an_image_with_outputs_that_are_not_finite_is_named_by_its_number() -> None:
    broken = IMAGES.clone()
    broken[3] = 0
    with pytest.raises(ModelError, match=r"not finite .* for 1 of 16 rows, the first being number 3"):
        of_images(lambda images: images.mean((1, 2, 3)).log(), broken)
