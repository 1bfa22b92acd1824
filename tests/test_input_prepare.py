"""Data sets that are prepared where they are missing: by one process, whole, quietly."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess, Popen

import numpy as np
import pytest

from input_pipeline import pipeline
from input_pipeline.config import DataConfig
from input_pipeline.prepare import make_builder, prepare
from tests.input_sources import evaluate, read
from tests.processes import finish, start
from trainer.errors import DataError

SOURCE = "tfds:fashion_mnist/train"
TRAIN, TEST = 5, 3


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def images(count: int) -> np.ndarray:
    """Returns images [count, 28, 28], each full of one value of its own."""
    return np.ones((count, 28, 28), np.uint8) * np.arange(100, 100 + count)[:, None, None]


@pytest.fixture
def idx_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a directory of IDX files that fashion_mnist is made of."""
    directory = tmp_path / "idx"
    directory.mkdir()
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        write_idx(directory / f"{name}-images-idx3-ubyte.gz", images(count))
        write_idx(directory / f"{name}-labels-idx1-ubyte.gz", np.arange(count))
    monkeypatch.setenv("STEADFAST_FASHION_MNIST_DIR", str(directory))
    return directory


@pytest.fixture(scope="module")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("tfds"))
    prepare("tfds:digits/train", "digits", directory)
    return directory


def config(data_dir: Path | str, **changes: str) -> DataConfig:
    return DataConfig(data_dir=str(data_dir), **changes)  # type: ignore[arg-type]


def refused(source: str, data_dir: Path | str) -> str:
    with pytest.raises(DataError) as raised:
        pipeline.preflight(config(data_dir), source)
    message = str(raised.value)
    assert "\n" not in message
    return message


@contextlib.contextmanager
def preparers(count: int, cwd: Path, data_dir: Path) -> Iterator[list[Popen[str]]]:
    args = ["-m", "input_pipeline.prepare", SOURCE, "fashion_mnist", str(data_dir)]
    processes = [start(args, cwd=cwd) for _ in range(count)]
    try:
        yield processes
    finally:
        finish(processes)


def next_line(process: Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_of_four_one_prepares_and_if_it_is_killed_another(tmp_path: Path, idx_dir: Path) -> None:
    """The preparer is killed in the midst of its work: it waits for a pipe that says nothing."""
    pixels = idx_dir / "train-images-idx3-ubyte.gz"
    pixels.unlink()
    os.mkfifo(pixels)
    data_dir = tmp_path / "data"
    begun = f"{SOURCE}: preparing it under {data_dir}\n"
    with preparers(1, tmp_path, data_dir) as (first,):
        assert next_line(first) == begun
        with preparers(3, tmp_path, data_dir) as others:
            for process in others:
                assert next_line(process) == f"{SOURCE}: another process prepares it, waiting\n"
            assert not (data_dir / "fashion_mnist" / "1.0.0").exists()
            pixels.unlink()
            write_idx(pixels, images(TRAIN))
            first.send_signal(signal.SIGKILL)
            outputs = finish(others)
    assert first.returncode == -signal.SIGKILL
    assert [process.returncode for process in others] == [0, 0, 0]
    assert sorted(outputs) == ["", "", begun]
    # Nothing is left of the one that was killed.
    assert [path.name for path in (data_dir / "fashion_mnist").iterdir()] == ["1.0.0"]

    assert pipeline.preflight(config(data_dir), SOURCE) == TRAIN
    source = pipeline.open_source(config(data_dir), SOURCE)
    ((x, y),) = evaluate(source, config(data_dir), workers=1, batch=10)
    assert x.shape == (TRAIN, 28, 28, 1)
    np.testing.assert_array_equal(x, np.ones_like(x) * (100 + y)[:, None, None, None])
    assert sorted(y) == list(range(TRAIN))


def test_a_cut_file_is_named_by_the_one_that_asked(tmp_path: Path, idx_dir: Path) -> None:
    labels = idx_dir / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-12])
    message = refused(SOURCE, tmp_path / "data")
    assert message.startswith(f"{labels}: cut, or not a gzip file: ")
    assert not (tmp_path / "data" / "fashion_mnist" / "1.0.0").exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\1\0\0\0\5abc"), "3 bytes do not"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0"), "not an IDX file of bytes"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\1\0\0\0\1a"), r"\(1,\) values"),
        ("train-labels-idx1-ubyte.gz", b"plain", "cut, or not a gzip file"),
        ("train-images-idx3-ubyte.gz", None, "there is no train-images-idx3-ubyte.gz in it"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, idx_dir: Path, name: str, content: bytes | None, reason: str
) -> None:
    (idx_dir / name).unlink()
    if content is not None:
        (idx_dir / name).write_bytes(content)
    with pytest.raises(DataError, match=reason) as raised:
        prepare(SOURCE, "fashion_mnist", str(tmp_path / "data"))
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_says_what_is_wrong_in_one_line(
    tmp_path: Path, python: Callable[..., CompletedProcess[str]]
) -> None:
    (tmp_path / "file").touch()
    done = python("-m", "input_pipeline.prepare", SOURCE, "digits", str(tmp_path / "file" / "x"))
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith(f"{SOURCE}: data.data_dir={tmp_path}/file/x cannot be used: ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("digits", "expected tfds:NAME/SPLIT, such as tfds:digits/train"),
        ("/train", "expected tfds:NAME/SPLIT, such as tfds:digits/train"),
        ("digits/dev", "no split 'dev'; there are train, test"),
        ("digits/train[:x]", "no split 'train[:x]'; there are train, test"),
        ("digits/train[:0]", "the split 'train[:0]' has no examples; correct it"),
        ("digits/train[9:5]", "the split 'train[9:5]' has no examples; correct it"),
        ("no_such_data/train", "tfds has no data set 'no_such_data'; this project adds digits, "),
        ("no such/data/train", "Parsing builder name string no such/data failed."),
        ("mnist/no_such_config/train", "Failed to construct dataset "),
        ("mnist:9.9.9/train", "Failed to construct dataset "),
    ],
)
def test_addresses_of_nothing_are_refused(digits_dir: str, address: str, reason: str) -> None:
    assert refused(f"tfds:{address}", digits_dir).startswith(f"tfds:{address}: {reason}")


def test_a_data_set_of_the_same_name_in_tfds_does_no_harm(tmp_path: Path) -> None:
    # tfds defines its fashion_mnist beside mnist.
    names = ["mnist", "fashion_mnist", "digits", "fashion_mnist", "mnist"]
    builders = [make_builder("tfds", name, str(tmp_path)) for name in names]
    assert [builder.name for builder in builders] == names
    assert type(builders[1]).__module__ == "input_pipeline.datasets.fashion_mnist.builder"


def test_another_file_format_is_refused(tmp_path: Path) -> None:
    from input_pipeline.datasets.digits.builder import Builder

    Builder(data_dir=str(tmp_path), file_format="tfrecord").download_and_prepare()
    assert refused("tfds:digits/train", tmp_path) == (
        f"tfds:digits/train: it was prepared under {tmp_path} in a format without random access; "
        "remove it or use another data.data_dir"
    )


def test_nothing_is_prepared_on_a_remote_file_system() -> None:
    with pytest.raises(DataError, match="prepare it in a local directory and copy it there"):
        prepare("tfds:digits/train", "digits", "gs://bucket/data")


def test_part_of_a_split(digits_dir: str) -> None:
    settings = config(digits_dir)
    whole, half, both = (
        pipeline.open_source(settings, f"tfds:digits/{split}")
        for split in ("train", "train[50%:]", "test+train[:10]")
    )
    assert pipeline.preflight(settings, "tfds:digits/train[50%:]") == half.num_examples == 721
    assert both.num_examples == 365
    first, second, third = (
        pipeline.raw_examples(source, settings, 2000)["image"] for source in (whole, half, both)
    )
    np.testing.assert_array_equal(second, first[721:])
    np.testing.assert_array_equal(third[355:], first[:10])


@pytest.mark.parametrize("cache", [False, True])
def test_digits_have_one_sequence(digits_dir: str, cache: bool) -> None:
    settings = DataConfig(
        data_dir=digits_dir,
        preprocess="input_pipeline.vision:scale_16",
        augment="input_pipeline.vision:shift_and_flip",
        cache=cache,
    )
    source = pipeline.open_source(settings, "tfds:digits/train")
    pixels, labels = read(source, settings, (20, 30), batch=60)
    assert pixels.shape == (600, 8, 8, 1)
    assert pixels.max() == 1
    for workers in (2, 3, 4):
        others = read(source, settings, (25, 30), batch=60, workers=workers)
        np.testing.assert_array_equal(others[0], pixels[300:])
        np.testing.assert_array_equal(others[1], labels[300:])


@pytest.mark.parametrize(("count", "workers"), [(3, 2), (3, 4), (25, 3)])
def test_evaluation_reads_every_example_once(digits_dir: str, count: int, workers: int) -> None:
    settings = config(digits_dir)
    source = pipeline.open_source(settings, f"tfds:digits/train[:{count}]")
    batches = evaluate(source, settings, workers=workers)
    expected = pipeline.raw_examples(source, settings, 100)["image"]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), expected)


def test_every_feature_is_input_without_a_label(digits_dir: str) -> None:
    settings = config(digits_dir, label="")
    source = pipeline.open_source(settings, "tfds:digits/test")
    ((x,),) = pipeline.eval_dataset(
        source, settings, batch_size=355, num_workers=1, worker=0
    ).as_numpy_iterator()
    assert {name: values.shape for name, values in x.items()} == {
        "image": (355, 8, 8, 1),
        "label": (355,),
    }
    assert set(pipeline.raw_spec(source, settings)) == {"image", "label"}
