"""Served answers are the trained model's, from raw input, in a process without this project."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from export import saved_model, signatures
from export.config import ExportConfig
from tests import export_cases
from trainer.errors import ConfigError

# Isolated (-I): neither the project nor the current directory is on its path.
CLIENT = """
import os, pickle, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
with open(sys.argv[1], "rb") as file:
    jobs = pickle.load(file)
answers = []
for path, signature, requests in jobs:
    serve = tf.saved_model.load(path).signatures[signature]
    by_size = []
    for size in (1, 5):
        batch = {name: tf.constant(values[:size]) for name, values in requests.items()}
        by_size.append({name: value.numpy() for name, value in serve(**batch).items()})
    answers.append(by_size)
assert "export" not in sys.modules and "trainer" not in sys.modules
with open(sys.argv[2], "wb") as file:
    pickle.dump(answers, file)
"""

# Signature names and dtypes are what clients are written against: they must not change.
SIGNATURES: dict[str, dict[str, Any]] = {
    "cnn": {
        "serving_default": {"image": "uint8"},
        "features": {"input": "float32"},
        "outputs": {"output": "float32"},
    },
    "cnn_bfloat16": {
        "serving_default": {"image": "uint8"},
        "features": {"input": "float32"},
        "outputs": {"output": "float32"},
    },
    "jpeg": {
        "serving_default": {"image_encoded": "string"},
        "features": {"input": "float32"},
        "outputs": {"scores": "float32"},
    },
    "named_ids": {
        "serving_default": {"user_ids": "int64"},
        "features": {"user_ids": "int64"},
        "outputs": {"class": "int32", "score": "float32"},
    },
    "age_and_city": {
        "serving_default": {"age": "float32", "city": "string"},
        "features": {"age": "float32", "city": "string"},
        "outputs": {"price": "float32", "risk": "float32"},
    },
    "table_in_preprocess": {
        "serving_default": {"colour": "string", "size": "int32"},
        "features": {"colour": "float32", "size": "float32"},
        "outputs": {"output_0": "float32", "output_1": "float32"},
    },
}


def pipeline_output(case: export_cases.Case) -> Any:
    """What the input pipeline feeds the model for all golden examples."""
    dataset = tf.data.Dataset.from_tensor_slices(
        {
            name: tf.constant(values, case.raw_spec[name].dtype)
            for name, values in case.golden.items()
        }
    )
    dataset = dataset.map(case.preprocess or (lambda features: features))
    (batch,) = dataset.batch(export_cases.NUM_EXAMPLES)
    return batch if case.preprocess or len(batch) > 1 else next(iter(batch.values()))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exports every case; returns by name the case, its result and a fresh process' answers."""
    root = tmp_path_factory.mktemp("served")
    found: dict[str, Any] = {}
    jobs = []
    for build in export_cases.CASES:
        case = build()
        result = saved_model.export(
            case.model, ExportConfig(dir=str(root / build.__name__)), metrics={}, **case.arguments()
        )
        raw = {signatures.signature_name(name): values for name, values in case.golden.items()}
        inputs = pipeline_output(case)
        names = sorted(SIGNATURES[build.__name__]["features"])
        features = dict(
            zip(names, [value.numpy() for value in tf.nest.flatten(inputs)], strict=True)
        )
        jobs += [
            (result.path, "serving_default", raw),
            (result.path, "features", features),
        ]
        found[build.__name__] = [case, result, inputs]
    (root / "jobs").write_bytes(pickle.dumps(jobs))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-I", "-c", CLIENT, str(root / "jobs"), str(root / "answers")],
        check=True,
        env=env,
        cwd=root,
    )
    answers = pickle.loads((root / "answers").read_bytes())
    for i, values in enumerate(found.values()):
        values.append({"serving_default": answers[2 * i], "features": answers[2 * i + 1]})
    return found


@pytest.mark.parametrize("name", SIGNATURES)
def test_served_equals_trained(served: dict[str, Any], name: str) -> None:
    case, result, inputs, answers = served[name]
    low = name == "cnn_bfloat16"
    trained = signatures.named_outputs(case.model, case.model(inputs, training=False))
    for by_size in answers.values():
        for size, served_answers in zip((1, 5), by_size, strict=True):
            assert set(served_answers) == set(trained)
            for key, value in served_answers.items():
                expected = trained[key].numpy()[:size]
                assert value.dtype == expected.dtype
                np.testing.assert_allclose(value, expected, rtol=0, atol=8e-3 if low else 1e-5)
    assert result.max_difference <= (2**-7 if low else 1e-5)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_names_and_dtypes(served: dict[str, Any], name: str) -> None:
    functions = tf.saved_model.load(served[name][1].path).signatures
    assert set(functions) == {"serving_default", "features"}
    for signature in functions:
        inputs = functions[signature].structured_input_signature[1]
        outputs = functions[signature].structured_outputs
        assert {k: v.dtype.name for k, v in inputs.items()} == SIGNATURES[name][signature]
        assert {k: v.dtype.name for k, v in outputs.items()} == SIGNATURES[name]["outputs"]
        assert all(spec.shape[0] is None for spec in [*inputs.values(), *outputs.values()])


def test_unknown_city_is_served_as_out_of_vocabulary(served: dict[str, Any]) -> None:
    result = served["age_and_city"][1]
    serve = tf.saved_model.load(result.path).signatures["serving_default"]
    age = tf.ones([2, 1])
    prices = serve(age=age, city=tf.constant([["Paris"], ["Atlantis"]]))["price"].numpy()
    assert prices[0] == prices[1]
    oslo = serve(age=age[:1], city=tf.constant([["Oslo"]]))["price"].numpy()
    assert oslo[0] != prices[0]


def test_export_holds_neither_optimizer_nor_metrics(served: dict[str, Any]) -> None:
    case, result, *_ = served["cnn"]
    loaded = tf.saved_model.load(result.path)
    names = sorted(variable.name.split(":")[0] for variable in loaded.parameters)
    assert len(names) == len(case.model.trainable_variables) + 2  # the moving statistics
    checkpoint = tf.train.list_variables(f"{result.path}/variables/variables")
    assert len([name for name, _ in checkpoint if "OBJECT_GRAPH" not in name]) == len(names)


def test_names_do_not_depend_on_models_built_before() -> None:
    for _ in range(2):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        module = signatures.build(model, None, {"x": tf.TensorSpec([2], tf.int32)})
        assert set(module.functions["features"].structured_outputs) == {"output"}
        assert set(module.functions["features"].structured_input_signature[0][0]) == {"input"}


def test_single_numeric_feature_is_fed_as_float32() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    module = signatures.build(model, None, {"x": tf.TensorSpec([2], tf.uint8)})
    answers = module.functions["serving_default"](x=tf.constant([[200, 100]], tf.uint8))
    assert answers["output"].numpy() == [[300.0]]


def test_named_outputs_of_a_functional_model() -> None:
    x = keras.Input((2,), name="x")
    first, second = keras.layers.Dense(1, name="clicks")(x), keras.layers.Dense(3)(x)
    model = keras.Model(x, [first, second])
    module = signatures.build(model, None, {"x": tf.TensorSpec([2], tf.float32)})
    assert set(module.functions["features"].structured_outputs) == {"clicks", "output_1"}


def test_model_that_is_not_built_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not built: call it on a batch"):
        signatures.build(export_cases.TwoHeads(), None, {"x": tf.TensorSpec([1], tf.float32)})


def test_features_whose_names_collide_are_refused() -> None:
    model = export_cases.cnn().model
    spec = tf.TensorSpec([1], tf.float32)
    with pytest.raises(ConfigError, match=r"a/b, a_b: two have the same name"):
        signatures.build(model, None, {"a/b": spec, "a_b": spec})
