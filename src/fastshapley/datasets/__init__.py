"""Load the data sets of the paper from the files that their publishers distribute.

Files are searched in the folder ``$FASTSHAPLEY_DATA`` and in the user's cache. Missing files are downloaded to the
cache.
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
