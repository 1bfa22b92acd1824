"""The functions that a served model answers with, traced from the trained one.

    module = build(model, preprocess, {"image": tf.TensorSpec([28, 28, 1], tf.uint8)})
    tf.saved_model.save(module, path, signatures=module.functions)

Signatures, each for any batch size:

  serving_default  raw features as callers have them -> answers
  features         model input as the input pipeline yields it -> answers

Names: a dictionary keeps its keys; an input or output whose layer the author named keeps
that name; anything else is `input` / `output`, or `input_0`, `input_1`, … for several.
Names that Keras made up (`dense_3`) would change with the number of models built before,
so they are not used. A character that is no letter, digit or `_` becomes `_`, as
TensorFlow does. Floating-point answers are float32 whatever the precision of the model.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from input_pipeline.model_input import model_input
from trainer.errors import ConfigError

SERVING = "serving_default"
FEATURES = "features"

Preprocess = Callable[[dict[str, tf.Tensor]], Any]


class ServedModel(tf.Module):
    """What is written to the SavedModel: traced functions and all that they read."""

    functions: dict[str, Any]
    """Concrete function of each signature, by name."""

    def __init__(self, functions: dict[str, Any]):
        super().__init__(name="served_model")
        self.functions = functions
        # Only what an answer needs: neither the optimizer's slots nor metrics. Under a
        # strategy these are the chief's own copies, plain variables without collectives.
        self.parameters = list({id(v): v for f in functions.values() for v in f.variables}.values())
        self.resources = _captured_resources(list(functions.values()))


def build(
    model: keras.Model,
    preprocess: Preprocess | None,
    raw_spec: dict[str, tf.TensorSpec],
    model_inputs_spec: Any = None,
) -> ServedModel:
    """Traces the signatures of `model`.

    Args:
      model: a built model; created under a strategy or not.
      preprocess: graph code, one example's features -> model input (tensor, dict or tuple);
        None: see `input_pipeline.model_input`.
      raw_spec: feature name -> shape and dtype of one example, without batch dimension.
      model_inputs_spec: structure of TensorSpecs of one example's model input; found by
        tracing `preprocess` if not given.

    Raises:
      ConfigError: the model is not built, or two features have the same signature name.
    """
    if not model.built:
        raise ConfigError(
            f"model {model.name!r} is not built: call it on a batch, or give it keras.Input layers"
        )
    if not raw_spec:
        raise ConfigError("no raw feature to serve: the data has only a label")
    by_signature_name = {signature_name(name): name for name in raw_spec}
    if len(by_signature_name) < len(raw_spec):
        raise ConfigError(
            f"features {', '.join(sorted(raw_spec))}: two have the same name once characters "
            "other than letters, digits and _ are replaced by _; rename one"
        )
    if model_inputs_spec is None:
        model_inputs_spec = _model_inputs_spec(preprocess, raw_spec)
    input_names = names_of(model_inputs_spec, _authored_input_names(model), "input")

    def answer(inputs: Any) -> dict[str, tf.Tensor]:
        return named_outputs(model, model(inputs, training=False))

    def serve(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        raw = {name: features[key] for key, name in by_signature_name.items()}
        if preprocess is None:
            return answer(model_input(raw))
        row_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec(spec.shape, spec.dtype), model_inputs_spec
        )
        return answer(tf.map_fn(preprocess, raw, fn_output_signature=row_spec))

    def serve_features(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        flat = [features[name] for name in input_names]
        return answer(tf.nest.pack_sequence_as(model_inputs_spec, flat))

    raw_specs = {key: raw_spec[name] for key, name in by_signature_name.items()}
    input_specs = dict(zip(input_names, tf.nest.flatten(model_inputs_spec), strict=True))
    return ServedModel(
        {
            SERVING: tf.function(serve).get_concrete_function(_batched(raw_specs)),
            FEATURES: tf.function(serve_features).get_concrete_function(_batched(input_specs)),
        }
    )


def named_outputs(model: keras.Model, outputs: Any) -> dict[str, tf.Tensor]:
    """Names what the model returned, and makes floating-point answers float32."""
    names = names_of(outputs, _authored_output_names(model), "output")
    flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(outputs)]
    return {
        name: tf.cast(value, tf.float32) if value.dtype.is_floating else value
        for name, value in zip(names, flat, strict=True)
    }


def names_of(structure: Any, authored: Sequence[str], default: str) -> list[str]:
    """Returns the signature name of each leaf of `structure`, in `tf.nest.flatten`'s order.

    Args:
      structure: tensors or specs, nested in dicts, lists and tuples.
      authored: names that the author gave, in the same order; "" where there is none.
      default: name of a single leaf; `{default}_0`, … for several.
    """
    paths = _paths(structure)
    if isinstance(structure, dict):
        return [signature_name("_".join(map(str, path))) for path in paths]
    names = [default] if len(paths) == 1 else [f"{default}_{i}" for i in range(len(paths))]
    if len(authored) != len(names):
        return names
    named = [signature_name(given) or name for given, name in zip(authored, names, strict=True)]
    return named if len(set(named)) == len(named) else names


def signature_name(name: str) -> str:
    """Returns the name that a feature or output has in a signature."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def low_precision(module: ServedModel) -> tf.DType | None:
    """Returns bfloat16 or float16 if a served function computes in it, else None."""
    dtypes = {
        tensor.dtype
        for function in module.functions.values()
        for operation in function.graph.get_operations()
        for tensor in operation.outputs
    }
    return next((dtype for dtype in (tf.bfloat16, tf.float16) if dtype in dtypes), None)


def _paths(structure: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the keys that lead to each leaf, in `tf.nest.flatten`'s order."""
    if isinstance(structure, dict):
        items = [(key, structure[key]) for key in sorted(structure)]
    elif tf.nest.is_nested(structure):
        items = list(enumerate(structure))
    else:
        return [prefix]
    return [path for key, value in items for path in _paths(value, (*prefix, key))]


def _model_inputs_spec(preprocess: Preprocess | None, raw_spec: dict[str, tf.TensorSpec]) -> Any:
    """Returns the TensorSpecs of one example's model input, by tracing."""
    names = list(raw_spec)

    def trace(*values: tf.Tensor) -> Any:
        features = dict(zip(names, values, strict=True))
        return model_input(features) if preprocess is None else preprocess(features)

    specs = [tf.TensorSpec(spec.shape, spec.dtype) for spec in raw_spec.values()]
    outputs = tf.function(trace).get_concrete_function(*specs).structured_outputs
    return tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), outputs)


def _batched(specs: dict[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec([None, *spec.shape], spec.dtype, name=name)
        for name, spec in specs.items()
    }


def _authored_input_names(model: keras.Model) -> list[str]:
    inputs = getattr(model, "inputs", None) or []
    made_up = re.compile(r"(keras_tensor|input_layer)(_\d+)?")
    return ["" if made_up.fullmatch(value.name) else value.name for value in inputs]


def _authored_output_names(model: keras.Model) -> list[str]:
    if isinstance(model, keras.Sequential):
        names = [model.layers[-1].name]
    else:
        names = list(getattr(model, "output_names", None) or [])
    kinds = {layer.name: type(layer).__name__ for layer in model.layers}
    return ["" if _is_made_up(name, kinds.get(name, "")) else name for name in names]


def _is_made_up(name: str, kind: str) -> bool:
    """Tells whether Keras derived `name` from the layer's class, as `conv2d_3` from Conv2D."""
    if not kind:  # An operation outside any layer, such as `add`: nobody named it.
        return True
    return re.fullmatch(kind.lower(), re.sub(r"_\d+$", "", name).replace("_", "")) is not None


def _captured_resources(functions: list[Any]) -> list[Any]:
    """Returns the lookup tables and the like that `functions` read.

    Tables may be held anywhere: by a layer, by the preprocess function's module, by a
    closure. A SavedModel must own them, and nothing leads from a function to its tables,
    so all live ones are compared with what was captured.
    """
    captured = {id(value) for function in functions for value in function.captured_inputs}
    kind = tf.saved_model.experimental.TrackableResource
    live = [value for value in gc.get_objects() if issubclass(type(value), kind)]
    return [value for value in live if id(value.resource_handle) in captured]
