"""Generations: whole or not at all, the newest whole one wins."""

import os
import shutil

import ml_dtypes
import numpy as np
import pytest

from trainer import compat

compat.import_tensorflow()
from trainer.generations import Generations  # noqa: E402

ARRAYS = {
    "a/float": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b/bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
    "c/int": np.array([2**40, -1], np.int64),
    "d/scalar": np.float64(0.1) * np.ones([]),
    "e/empty": np.zeros([0, 3], np.float32),
}


def newest_step(generations):
    newest = generations.newest()
    return newest and newest.step


def test_arrays_come_back_bit_for_bit(tmp_path):
    generations = Generations(str(tmp_path / "backup"))
    generations.write(ARRAYS, {"step": 7, "note": "x"})
    newest = generations.newest()
    assert newest is not None
    assert newest.step == 7
    assert newest.state == {"step": 7, "note": "x"}
    assert newest.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        found = newest.arrays[name]
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert found.tobytes() == array.tobytes()


def test_nothing_there(tmp_path):
    assert Generations(str(tmp_path / "absent")).newest() is None


def test_keeps_the_newest(tmp_path):
    generations = Generations(str(tmp_path), keep=2)
    for step in (5, 10, 15):
        generations.write(ARRAYS, {"step": step})
    assert generations.steps() == [10, 15]


def test_replaces_a_generation_of_the_same_step(tmp_path):
    generations = Generations(str(tmp_path))
    generations.write(ARRAYS, {"step": 5, "note": "old"})
    generations.write(ARRAYS, {"step": 5, "note": "new"})
    newest = generations.newest()
    assert newest is not None
    assert newest.state["note"] == "new"


def _cut(path):
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)


def _flip(path):
    with open(path, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", [_cut, _flip, os.remove])
@pytest.mark.parametrize(
    "name", ["arrays.index", "arrays.data-00000-of-00001", "state.json", "MANIFEST.json"]
)
def test_damage_falls_back_to_the_previous_one(tmp_path, damage, name, caplog):
    generations = Generations(str(tmp_path))
    generations.write(ARRAYS, {"step": 5})
    path = generations.write(ARRAYS, {"step": 10})
    damage(os.path.join(path, name))
    assert newest_step(generations) == 5


def test_a_killed_write_is_invisible_and_swept(tmp_path):
    generations = Generations(str(tmp_path))
    path = generations.write(ARRAYS, {"step": 5})
    # What a kill before the rename leaves: the hidden directory, with or without a manifest.
    shutil.copytree(path, tmp_path / ".000000000009")
    assert newest_step(generations) == 5
    generations.write(ARRAYS, {"step": 10})
    assert sorted(os.listdir(tmp_path)) == ["000000000005", "000000000010"]


def test_delete(tmp_path):
    generations = Generations(str(tmp_path / "backup"))
    generations.write(ARRAYS, {"step": 5})
    generations.delete()
    assert not (tmp_path / "backup").exists()
