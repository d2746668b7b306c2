"""Load the tables of the paper from the files that their publishers distribute.

Files are searched in the folder ``$FASTSHAPLEY_DATA`` and in the user's cache. Missing files are downloaded to the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from fastshapley.data.players import Features, Groups
from fastshapley.datasets.download import Source, find

# The digests of the last two files are not known: the publisher names none, and the copies at hand are rounded or
# cut. The length of the download and the CRC-32 in the zip file tell damage on the way, but not another file.
_UCI = "https://archive.ics.uci.edu"
SOURCES = {
    "census": Source(
        "census/adult.data",
        f"{_UCI}/dataset/2/adult",
        f"{_UCI}/static/public/2/adult.zip",
        ("adult.data",),
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "marketing": Source(
        "marketing/bank-full.csv",
        f"{_UCI}/dataset/222/bank+marketing",
        f"{_UCI}/static/public/222/bank+marketing.zip",
        ("bank.zip", "bank-full.csv"),
        "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
    ),
    "bankruptcy": Source(
        "bankruptcy/data.csv",
        f"{_UCI}/dataset/572/taiwanese+bankruptcy+prediction",
        f"{_UCI}/static/public/572/taiwanese+bankruptcy+prediction.zip",
        ("data.csv",),
    ),
    "news": Source(
        "news/OnlineNewsPopularity.csv",
        f"{_UCI}/dataset/332/online+news+popularity",
        f"{_UCI}/static/public/332/online+news+popularity.zip",
        ("OnlineNewsPopularity/OnlineNewsPopularity.csv",),
    ),
}


@dataclass(frozen=True)
class Split:
    """A table, split into training, validation and test rows as in the paper.

    Parameters
    ----------
    X_train, X_val, X_test : DataFrame
        The rows.
    y_train, y_val, y_test : ndarray
        The targets, 0 or 1.
    players : Features or Groups
        The players: columns, or groups of one-hot columns.
    """

    X_train: pd.DataFrame
    X_val: pd.DataFrame
    X_test: pd.DataFrame
    y_train: NDArray[np.int64]
    y_val: NDArray[np.int64]
    y_test: NDArray[np.int64]
    players: Features | Groups


def load_census(categories: Literal["codes", "names"] = "codes") -> Split:
    """Load UCI Adult: 32,561 people with 12 features. The target is an income above 50,000 dollars.

    Parameters
    ----------
    categories : {"codes", "names"}, default="codes"
        "codes" numbers categories in alphabetical order, and relationships by closeness, as in the paper. "names"
        returns text, with gaps where the publisher has a question mark.

    Returns
    -------
    Split
        The table.
    """
    if categories not in ("codes", "names"):
        raise ValueError(f"categories is {categories!r}: use 'codes' or 'names'")
    columns = [
        "Age",
        "Workclass",
        "fnlwgt",
        "Education",
        "Education-Num",
        "Marital Status",
        "Occupation",
        "Relationship",
        "Race",
        "Sex",
        "Capital Gain",
        "Capital Loss",
        "Hours per week",
        "Country",
        "income",
    ]
    frame = pd.read_csv(
        find(SOURCES["census"]),
        names=columns,
        skipinitialspace=True,
        na_values=["?"] if categories == "names" else [],
        keep_default_na=False,
    )
    y = (frame.pop("income") == ">50K").to_numpy(np.int64)
    frame = frame.drop(columns=["fnlwgt", "Education"])
    if categories == "codes":
        relationships = ["Not-in-family", "Unmarried", "Other-relative", "Own-child", "Husband", "Wife"]
        for name in frame.columns:
            if not pd.api.types.is_numeric_dtype(frame[name]):
                order = relationships if name == "Relationship" else sorted(frame[name].unique())
                frame[name] = frame[name].map({value: code for code, value in enumerate(order)})
        frame = frame.astype(np.float64)
    return _split(frame, y, first=(0.2, 7), second=(0.2, 0), players=Features())


def load_marketing() -> Split:
    """Load UCI bank marketing: 45,211 calls with 16 features. The target is a term deposit.

    As in the paper, four features are one-hot, and the columns of each are one group. Yes and no are 1 and 0,
    levels of education and months are numbered, and the continuous features are standardised.

    Returns
    -------
    Split
        The table.
    """
    frame = pd.read_csv(find(SOURCES["marketing"]), sep=";")
    y = (frame.pop("y") == "yes").to_numpy(np.int64)
    orders = {
        "education": ["unknown", "primary", "secondary", "tertiary"],
        "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
        **{name: ["no", "yes"] for name in ("default", "housing", "loan")},
    }
    parts, groups = [], {}
    for name in frame.columns:
        column = frame[name]
        if name in orders:
            part = column.map({value: code for code, value in enumerate(orders[name])}).to_frame()
        elif pd.api.types.is_numeric_dtype(column):
            part = ((column - column.mean()) / column.std(ddof=0)).to_frame()
        else:
            part = pd.get_dummies(column, prefix=name, prefix_sep="=")
        parts.append(part.astype(np.float64))
        groups[name] = list(part.columns)
    return _split(pd.concat(parts, axis=1), y, first=(0.1, 123), second=(0.1, 123), players=Groups(groups))


def load_bankruptcy() -> Split:
    """Load UCI Taiwanese bankruptcy: 6,817 companies with 94 features. The target is a bankruptcy.

    As in the paper, a constant column and two companies with an invalid revenue per person are left out.

    Returns
    -------
    Split
        The table.
    """
    frame = pd.read_csv(find(SOURCES["bankruptcy"]))
    frame.columns = frame.columns.str.strip()
    frame = frame[frame["Revenue per person"] <= 1].drop(columns="Net Income Flag")
    y = frame.pop("Bankrupt?").to_numpy(np.int64)
    return _split(frame.astype(np.float64), y, first=(0.2, 0), second=(0.2, 0), players=Features())


def load_news() -> Split:
    """Load UCI online news popularity: 39,644 articles with 58 features. The target is more than 1,400 shares.

    Returns
    -------
    Split
        The table.
    """
    frame = pd.read_csv(find(SOURCES["news"]))
    frame.columns = frame.columns.str.strip()
    y = (frame.pop("shares") > 1400).to_numpy(np.int64)
    frame = frame.drop(columns=["url", "timedelta"], errors="ignore").astype(np.float64)
    return _split(frame, y, first=(0.1, 123), second=(0.1, 123), players=Features())


def _split(
    X: pd.DataFrame, y: Any, first: tuple[float, int], second: tuple[float, int], players: Features | Groups
) -> Split:
    """Split off the test rows by a share and a seed, then the validation rows by another."""
    X, X_test, y, y_test = train_test_split(X, y, test_size=first[0], random_state=first[1])
    X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=second[0], random_state=second[1])
    return Split(X_train, X_val, X_test, y_train, y_val, y_test, players)
