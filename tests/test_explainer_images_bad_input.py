"""Tests of the errors that FastSHAP raises for wrong images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from image_items import Endless, Items
from small_images import (
    QUICK,
    X,
    explainer,
)

from fastshapley import FastSHAP
from fastshapley.errors import InputError

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    return explainer().fit(X)


class TestWrongInput:
    @pytest.mark.parametrize(
        ("images", "message"),
        [
            (X[0], r"shape \(1, 8, 8\): pass images of shape .*one image is X\[None\]"),
            (X.flatten(1), r"shape \(96, 64\): pass images"),
            (X.movedim(1, -1), "channels last"),
            ((255 * X).byte(), "dtype uint8"),
            (255 * X, "pixels from 0 to 255, and at fit they were from 0 to 1: scale X .* X / 255"),
            (X[..., :7], r"images of shape \(1, 8, 7\) where \(1, 8, 8\) is expected"),
            (X.repeat(1, 3, 1, 1), r"images of shape \(3, 8, 8\) where \(1, 8, 8\) is expected"),
            (X.where(X < 1, torch.nan), "pixels that are not finite"),
            (Items(255 * X), "item 0 of X has pixels from"),
            ("digits.npy", "item 0 of X is a str"),
        ],
        ids=["one image", "table", "channels last", "bytes", "scale", "size", "colour", "nan", "dataset", "path"],
    )
    def test_wrong_images_at_explain_time_raise(self, fitted: FastSHAP, images: Any, message: str) -> None:
        for explain in (fitted, fitted.shap_values, fitted.estimate):
            with pytest.raises(InputError, match=message):
                explain(images)

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            (X[:0], "X has no rows"),
            (Items(X[:0]), "X has no rows"),
            (X.flatten(1), r"shape \(96, 64\): pass images"),
            (np.zeros((4, 8, 8, 1)), "channels last"),
            (Endless(), "or a Dataset with a length"),
        ],
    )
    def test_wrong_images_at_fit_raise(self, images: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            explainer().fit(images)

    def test_wrong_validation_images_raise(self) -> None:
        with pytest.raises(InputError, match=r"X_val has images of shape \(1, 7, 8\)"):
            explainer().fit(X, X_val=X[:, :, :7])
        with pytest.raises(InputError, match="X_val has no rows"):
            explainer().fit(X, X_val=X[:0])
        with pytest.raises(InputError, match="item 3 of X_val is a int"):
            explainer().fit(X, X_val=Items(X, lambda image, number: number if number == 3 else image))

    def test_upsampling_values_of_a_table_raises(self) -> None:
        table = X.flatten(1)[:, 20:24]
        fitted = FastSHAP(lambda x: x[:, 0], value_function="baseline", recipe=QUICK, progress=False).fit(table)
        for explain in (fitted, fitted.shap_values):
            with pytest.raises(InputError, match="upsample is for images"):
                explain(table, upsample=True)

    def test_a_logit_link_for_outputs_that_are_not_probabilities_raises(self) -> None:
        with pytest.raises(InputError, match="not probabilities: use link='identity', or logits=True"):
            explainer(logits=False, link="logit").fit(X)

    def test_a_dataset_without_a_length_at_explain_time_raises(self, fitted: FastSHAP) -> None:
        with pytest.raises(InputError, match="or a Dataset with a length"):
            fitted(Endless())

    def test_images_without_superpixels_raise(self) -> None:
        with pytest.raises(InputError, match="Superpixels"):
            explainer(players=None, value_function="baseline").fit(X)
