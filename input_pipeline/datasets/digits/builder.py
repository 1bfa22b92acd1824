"""Hand-written digits: 1,797 grey images of 8x8 pixels, values 0 to 16, in 10 classes.

The images are in the package (`digits.csv.gz`: 64 pixels and the class in each line), so
nothing is downloaded. They are the test set of the UCI Optical Recognition of Handwritten
Digits data (E. Alpaydin, C. Kaynak, 1998, doi:10.24432/C50P49, CC BY 4.0), in the form in
which scikit-learn ships it. UCI's training part is not in it, so a fifth of each class,
every fifth image, is the test split here.
"""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

_FILE = pathlib.Path(__file__).parent / "digits.csv.gz"


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """tfds builder of `digits`, splits train (1,442) and test (355)."""

    name = "digits"
    pkg_dir_path = pathlib.Path(__file__).parent
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
            license="CC BY 4.0",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples("train"), "test": self._generate_examples("test")}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        with gzip.open(_FILE, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.int64)
        seen = [0] * 10
        for index, (*pixels, label) in enumerate(table.tolist()):
            seen[label] += 1
            if (seen[label] % 5 == 0) == (split == "test"):
                image = np.array(pixels, np.uint8).reshape(8, 8, 1)
                yield index, {"image": image, "label": label}
