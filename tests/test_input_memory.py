"""Examples that a function of the user returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import pipeline
from input_pipeline.sources import memory
from tests import input_sources
from tests.input_sources import N, config, evaluate, read, read_ids
from trainer.errors import ConfigError, DataError


def opened(monkeypatch: pytest.MonkeyPatch, value: Any, **changes: Any) -> Any:
    """Returns the source of which the user's function returns `value`."""
    monkeypatch.setattr(input_sources, "columns", lambda: value)
    return pipeline.open_source(config(**changes), "memory:tests.input_sources:columns")


def test_a_generator_is_as_good_as_its_columns() -> None:
    sources = [
        pipeline.open_source(config(), f"memory:tests.input_sources:{name}")
        for name in ("columns", "generator")
    ]
    ids = [read_ids(source, config(), (0, 25), workers=2) for source in sources]
    assert ids[0] == ids[1]
    assert sorted(ids[1][:N]) == list(range(N))
    blobs = [pipeline.raw_examples(s, config(), N)["blob"].tolist() for s in sources]
    assert blobs[0] == blobs[1] == [input_sources.blob(i) for i in range(N)]


def test_a_dataset_is_an_iterable_of_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tf.data.Dataset.range(N).map(lambda i: {"id": i, "label": i % 3})
    source = opened(monkeypatch, dataset)
    assert np.concatenate([x for x, _ in evaluate(source, config(), workers=2)]).tolist() == list(
        range(N)
    )


def test_an_iterable_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_ROWS", 1000)
    endless = ({"id": i, "label": 0} for i in itertools.count())
    with pytest.raises(DataError, match=r"does not end within 1,000 examples"):
        opened(monkeypatch, endless)
    assert next(endless)["id"] == 1001
    repeated = tf.data.Dataset.range(3).map(lambda i: {"id": i, "label": i}).repeat()
    with pytest.raises(DataError, match=r"does not end within 1,000 examples"):
        opened(monkeypatch, repeated)


def test_large_examples_without_end_are_refused_before_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "MAX_BYTES", 10_000)
    endless = ({"id": np.zeros(100), "label": 0} for _ in itertools.count())
    with pytest.raises(DataError, match=r"does not end within 12 examples"):
        opened(monkeypatch, endless)


class NotExamples:
    """Something that no tensor can hold."""


def rows_with_other_keys() -> Iterator[dict[str, int]]:
    yield {"id": 1, "label": 1}
    yield {"id": 1}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "no examples"),
        ([], "no examples"),
        ({"id": [], "label": []}, "no examples"),
        ({"id": [1, 2], "label": [1]}, "columns differ in length: {'id': 2, 'label': 1}"),
        ({"id": [1, 2], "label": 1}, "'label' is 1, not an array of examples"),
        (({"id": [1]}, [1]), "'x' is {'id': [1]}, not an array of examples"),
        ({"id": [[1], [1, 2]], "label": [1, 2]}, "examples differ in shape: "),
        ([{"id": [1]}, {"id": [1, 2]}], "examples differ in shape: "),
        ({"id": [NotExamples()], "label": [1]}, "'id' holds NotExamples, which no tensor can hold"),
        ([([1], 1)], "every example must be a dict with the same keys"),
        (rows_with_other_keys(), "every example must be a dict with the same keys"),
        (3, "returned a int; return a dict of arrays, (x, y), or an iterable of dicts"),
        (None, "returned a NoneType; return a dict of arrays, (x, y), or an iterable of dicts"),
    ],
    ids=repr,
)
def test_what_is_no_set_of_examples_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: Any, reason: str
) -> None:
    with pytest.raises(DataError) as raised:
        opened(monkeypatch, value)
    message = str(raised.value)
    assert message.startswith(f"memory:tests.input_sources:columns: {reason}")
    assert "\n" not in message


def test_a_missing_feature_is_named_with_those_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"no feature 'label' \(data\.label\); there are x$"):
        opened(monkeypatch, ([1, 2],))
    value = {"id": [1, 2], "label": [0, 1]}
    with pytest.raises(DataError, match=r"'w' \(data\.sample_weight\); there are id, label$"):
        opened(monkeypatch, value, sample_weight="w")


@pytest.mark.parametrize("cache", [False, True])
def test_class_weight_multiplies_sample_weight(cache: bool) -> None:
    settings = config(sample_weight="weight", cache=cache)
    source = pipeline.open_source(settings, "memory:tests.input_sources:columns")
    class_weight = (1.0, 10.0, 100.0)
    ids, labels, weights = read(source, settings, (0, 3), class_weight=class_weight)
    np.testing.assert_array_equal(labels, ids % 3)
    np.testing.assert_array_equal(weights, 10.0 ** (ids % 3) * (1 + ids / 8))
    ids, _, weights = read(source, settings, (0, 3))
    np.testing.assert_array_equal(weights, 1 + ids / 8)
    (ids, _, weights), *_ = pipeline.eval_dataset(
        source, settings, batch_size=N, num_workers=1, worker=0
    ).as_numpy_iterator()
    np.testing.assert_array_equal(weights, 1 + ids / 8)


def test_class_weight_needs_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    one_hot = {"id": [0, 1], "label": np.eye(2)}
    with pytest.raises(ConfigError, match=r"one class index .* 'label' .*float64 of shape \(2,\)"):
        read(opened(monkeypatch, one_hot), config(), (0, 1), batch=2, class_weight=(1.0, 2.0))
    without = config(label="")
    with pytest.raises(ConfigError, match=r"data\.label is not: there are no classes"):
        read(opened(monkeypatch, one_hot), without, (0, 1), batch=2, class_weight=(1.0, 2.0))
    column = {"id": [0, 1], "label": [[1], [0]]}
    ids, labels, weights = read(
        opened(monkeypatch, column), config(), (0, 1), batch=2, class_weight=(1.0, 2.0)
    )
    assert labels.shape == (2, 1)
    assert weights.tolist() == [2 - i for i in ids]


def test_a_sample_weight_needs_a_label() -> None:
    with pytest.raises(ConfigError, match=r"data\.sample_weight='w' weighs the loss"):
        config(sample_weight="w", label="")
    with pytest.raises(ConfigError, match=r"data\.sample_weight='label' is data\.label too"):
        config(sample_weight="label")


@pytest.mark.parametrize("workers", [2, 4])
def test_fewer_examples_than_workers_are_evaluated_once(workers: int) -> None:
    source = pipeline.open_source(config(), "memory:tests.input_sources:three")
    batches = evaluate(source, config(), workers=workers)
    assert [i for x, _ in batches for i in x] == [0, 1, 2]
