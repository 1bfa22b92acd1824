"""Fashion-MNIST: 60,000 + 10,000 grey images of 28x28 pixels of clothes, in 10 classes.

By H. Xiao, K. Rasul, R. Vollgraf (2017, arXiv:1708.07747), MIT licence. The four IDX files
are taken from `$STEADFAST_FASHION_MNIST_DIR`, or from where Debian's package
`dataset-fashion-mnist` puts them, or else downloaded.
"""

from __future__ import annotations

import gzip
import math
import os
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from trainer.errors import DataError

_DEBIAN = "/usr/share/datasets/fashion-mnist"
_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_VARIABLE = "STEADFAST_FASHION_MNIST_DIR"
_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


# Not registered: tfds has a data set of this name too.
class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """tfds builder of `fashion_mnist`, splits train (60,000) and test (10,000)."""

    name = "fashion_mnist"
    pkg_dir_path = pathlib.Path(__file__).parent
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release."}  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=__doc__,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(shape=(28, 28, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(names=_CLASSES),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://github.com/zalandoresearch/fashion-mnist",
            license="MIT",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        directory = local_directory()
        return {
            split: self._generate_examples(
                *(
                    os.path.join(directory, name)
                    if directory
                    else dl_manager.download(f"{_HOME}/{name}")
                    for name in names
                )
            )
            for split, names in _FILES.items()
        }

    def _generate_examples(self, images: str, labels: str) -> Iterator[tuple[int, dict[str, Any]]]:
        pixels, classes = read_idx(images), read_idx(labels)
        if pixels.shape != (len(classes), 28, 28) or classes.ndim != 1:
            raise DataError(
                f"{images} holds {pixels.shape} and {labels} {classes.shape} values; they must be "
                "(N, 28, 28) and (N,)"
            )
        for index, (image, label) in enumerate(zip(pixels, classes, strict=True)):
            yield index, {"image": image[..., np.newaxis], "label": int(label)}


def local_directory() -> str | None:
    """Returns the directory that holds all four files, or None.

    Raises:
      DataError: the environment names a directory that lacks one.
    """
    chosen = os.environ.get(_VARIABLE)
    names = [name for pair in _FILES.values() for name in pair]
    for directory in [chosen] if chosen else [_DEBIAN]:
        missing = [n for n in names if not os.path.exists(os.path.join(directory, n))]
        if not missing:
            return directory
        if chosen:
            raise DataError(f"{_VARIABLE}={chosen}: there is no {missing[0]} in it")
    return None


def read_idx(path: str) -> np.ndarray:
    """Returns the uint8 array of a gzip IDX file: [N] labels or [N, H, W] images.

    Raises:
      DataError: the file is not of that format, or cut.
    """
    try:
        with gzip.open(path, "rb") as file:
            data = file.read()
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cut, or not a gzip file: {error}") from None
    rank = data[3] if len(data) > 3 else 0
    start = 4 + 4 * rank
    if data[:3] != b"\0\0\x08" or not 1 <= rank <= 3 or len(data) < start:
        raise DataError(f"{path}: not an IDX file of bytes")
    shape = np.frombuffer(data, ">i4", rank, 4).tolist()
    if len(data) - start != math.prod(shape):
        raise DataError(f"{path}: cut: {len(data) - start} bytes do not hold {shape} values")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
