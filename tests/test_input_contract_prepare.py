"""tfds data sets: prepared once by one process, found by all others."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import pipeline
from input_pipeline.config import DataConfig
from input_pipeline.datasets.fashion_mnist import builder as fashion_mnist
from tests.processes import ROOT, finish, start
from trainer.errors import DataError

# Four processes that have imported everything and start at one moment.
RACE = """
import os, sys, time
from input_pipeline import pipeline
from input_pipeline.config import DataConfig
import tensorflow_datasets
config = DataConfig(train="tfds:digits/train", data_dir=sys.argv[1])
start = time.monotonic() + 0.5
racers = []
for _ in range(4):
    racers.append(os.fork())
    if not racers[-1]:
        time.sleep(max(0, start - time.monotonic()))
        count = pipeline.preflight(config, config.train)
        print("counted", count, flush=True)
        os._exit(0)
assert [os.waitpid(racer, 0)[1] for racer in racers] == [0] * 4
"""

# A preparer that dies in the middle of the first split.
VICTIM = """
import os, sys
from input_pipeline import prepare
from input_pipeline.datasets.digits import builder
generate = builder.Builder._generate_examples
def dying(self, split):
    for number, example in enumerate(generate(self, split)):
        if number == 100:
            os.kill(os.getpid(), 9)
        yield example
builder.Builder._generate_examples = dying
prepare.prepare("tfds:digits/train", "digits", sys.argv[1])
"""


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory where digits is prepared."""
    data_dir = str(tmp_path_factory.mktemp("digits"))
    assert preflight("tfds:digits/train", data_dir) == 1442
    return data_dir


def preflight(source: str, data_dir: str) -> int | None:
    return pipeline.preflight(DataConfig(train=source, data_dir=data_dir), source)


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_of_four_that_start_at_once_one_prepares(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    (race,) = processes = [start(["-c", RACE, str(data_dir)], cwd=tmp_path)]
    (output,) = finish(processes)
    assert race.returncode == 0, output
    assert output.count("counted 1442") == 4
    assert output.count("preparing it under") == 1
    assert not [name for name in files_in(data_dir) if "incomplete" in name]


def test_a_killed_preparer_leaves_the_way_free(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    (victim,) = processes = [start(["-c", VICTIM, str(data_dir)], cwd=tmp_path)]
    finish(processes)
    assert victim.returncode == -signal.SIGKILL
    assert preflight("tfds:digits/train", str(data_dir)) == 1442
    assert not [name for name in files_in(data_dir) if "incomplete" in name]


def test_digits_hold_what_they_should(digits_dir: str) -> None:
    images, labels = {}, {}
    for split, size in (("train", 1442), ("test", 355)):
        config = DataConfig(train=f"tfds:digits/{split}", data_dir=digits_dir)
        assert pipeline.preflight(config, config.train) == size
        source = pipeline.open_source(config, config.train)
        assert source.feature_spec["image"] == tf.TensorSpec([8, 8, 1], tf.uint8, name="image")
        dataset = pipeline.eval_dataset(source, config, batch_size=size, num_workers=1, worker=0)
        x, y = next(dataset.as_numpy_iterator())
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert (x.min(), x.max()) == (0, 16)
        images[split], labels[split] = x, y
    # A fifth of each class, and the same images as everybody's.
    for digit in range(10):
        counts = [np.sum(labels[split] == digit) for split in ("train", "test")]
        assert counts[1] == sum(counts) // 5
    everything = np.concatenate([images["train"], images["test"]]).reshape(1797, 64)
    table = np.loadtxt(
        ROOT / "input_pipeline/datasets/digits/digits.csv.gz", delimiter=",", dtype=np.float32
    )
    assert sorted(map(bytes, everything)) == sorted(map(bytes, np.ascontiguousarray(table[:, :64])))


def test_tfds_order_does_not_depend_on_workers(digits_dir: str) -> None:
    config = DataConfig(train="tfds:digits/train", data_dir=digits_dir, label="")
    source = pipeline.open_source(config, config.train)

    def labels(workers: int) -> np.ndarray:
        parts = []
        for worker in range(workers):
            dataset = pipeline.train_dataset(
                source, config, seed=1, global_batch_size=64, num_workers=workers, worker=worker,
                local_replicas=1, start_step=20, end_step=26,
            )  # fmt: skip
            parts.append([x["image"].sum((1, 2, 3)) for (x,) in dataset.as_numpy_iterator()])
        return np.concatenate(parts, axis=1)

    assert np.array_equal(labels(1), labels(2))
    assert np.array_equal(labels(1), labels(4))


def test_what_is_not_there_is_named(digits_dir: str) -> None:
    with pytest.raises(DataError, match=r"no split 'dev'; there are .*train"):
        preflight("tfds:digits/dev", digits_dir)
    with pytest.raises(DataError, match=r"no data set 'no_such_set'.*digits, fashion_mnist"):
        preflight("tfds:no_such_set/train", digits_dir)
    with pytest.raises(DataError, match="NAME/SPLIT"):
        preflight("tfds:digits", digits_dir)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def test_fashion_mnist_is_made_of_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images = {split: rng.integers(0, 256, (n, 28, 28)) for split, n in (("train", 30), ("test", 9))}
    for split, (image_file, label_file) in fashion_mnist._FILES.items():
        write_idx(tmp_path / image_file, images[split])
        write_idx(tmp_path / label_file, np.arange(len(images[split])) % 10)
    monkeypatch.setenv("STEADFAST_FASHION_MNIST_DIR", str(tmp_path))
    data_dir = str(tmp_path / "data")
    for split, pixels in images.items():
        config = DataConfig(train=f"tfds:fashion_mnist/{split}", data_dir=data_dir)
        assert pipeline.preflight(config, config.train) == len(pixels)
        source = pipeline.open_source(config, config.train)
        dataset = pipeline.eval_dataset(source, config, batch_size=99, num_workers=1, worker=0)
        x, y = next(dataset.as_numpy_iterator())
        expected = np.arange(len(pixels)) % 10
        assert np.array_equal(np.sort(y), np.sort(expected))
        assert sorted(map(bytes, x)) == sorted(map(bytes, pixels[..., None].astype(np.float32)))


def test_a_local_file_that_is_cut_or_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADFAST_FASHION_MNIST_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no train-images-idx3-ubyte.gz"):
        preflight("tfds:fashion_mnist/train", str(tmp_path / "data"))
    path = tmp_path / "cut.gz"
    write_idx(path, np.zeros((3, 28, 28)))
    whole = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(whole[:-1]))
    with pytest.raises(DataError, match=r"cut.gz: cut"):
        fashion_mnist.read_idx(str(path))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cut.gz"):
        fashion_mnist.read_idx(str(path))
