"""The paper's data sets, from the files that their publishers distribute.

They are looked for in the folder ``$FASTSHAPLEY_DATA``, then in the user's cache, then downloaded there.
"""

from fastshapley.datasets.image_loaders import Imagenette, Images, load_cifar10
from fastshapley.datasets.table_loaders import Split, load_bankruptcy, load_census, load_marketing, load_news

__all__ = [
    "Imagenette",
    "Images",
    "Split",
    "load_bankruptcy",
    "load_census",
    "load_cifar10",
    "load_marketing",
    "load_news",
]
