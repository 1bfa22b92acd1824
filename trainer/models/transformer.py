"""A transformer encoder that classifies texts.

    model = build(sequence_length=128, vocabulary_size=10_000, num_classes=2)

Token ids are integers; id 0 is padding, and changes nothing wherever it stands at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers, ops

from trainer.errors import ConfigError
from trainer.models.classifier import compile_classifier, logits
from trainer.models.schedules import learning_rate as rate


def build(
    *,
    sequence_length: int,
    vocabulary_size: int,
    num_classes: int,
    learning_rate: float | Mapping[str, Any] = 3e-4,
    num_layers: int = 2,
    width: int = 128,
    num_heads: int = 4,
    feed_forward: int = 512,
    dropout: float = 0.1,
) -> keras.Model:
    """Returns the compiled model.

    Args:
      sequence_length: L, tokens of a text, padding included.
      vocabulary_size: token ids are from 0 (padding) to vocabulary_size - 1.
      num_classes: labels are integers from 0 to num_classes - 1.
      learning_rate: of Adam; see `schedules.learning_rate`.
      num_layers: encoder blocks.
      width: features of a token, a multiple of `num_heads`.
      num_heads: attention heads.
      feed_forward: hidden width between attentions.
      dropout: share dropped after the embedding and each part of a block.

    The model maps token ids int32 [N, L] to logits float32 [N, num_classes].

    Raises:
      ConfigError: `width` is not a multiple of `num_heads`.
    """
    if width % num_heads:
        raise ConfigError(
            f"model.kwargs.width={width}: must be a multiple of num_heads={num_heads}"
        )
    tokens = layers.Input((sequence_length,), dtype="int32", name="tokens")
    # [N, 1, L]: which positions may be looked at, by every position alike.
    present = ops.not_equal(tokens, 0)
    visible = ops.expand_dims(present, 1)

    x = layers.Embedding(vocabulary_size, width, name="token_embedding")(tokens)
    x = PositionEmbedding(name="position_embedding")(x)
    x = layers.Dropout(dropout)(x)
    for _ in range(num_layers):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.MultiHeadAttention(num_heads, width // num_heads)(y, y, attention_mask=visible)
        x = layers.Add()([x, layers.Dropout(dropout)(y)])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(feed_forward, activation="gelu")(y)
        y = layers.Dense(width)(y)
        x = layers.Add()([x, layers.Dropout(dropout)(y)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)

    # Mean over the present tokens, in float32: it sums up to L numbers. A text without
    # any token gives 0, not NaN.
    weights = ops.expand_dims(ops.cast(present, "float32"), -1)
    total = ops.sum(ops.cast(x, "float32") * weights, axis=1)
    mean = total / ops.maximum(ops.sum(weights, axis=1), 1.0)
    model = keras.Model(tokens, logits(mean, num_classes), name="transformer")
    return compile_classifier(model, keras.optimizers.Adam(rate(learning_rate)))


@keras.saving.register_keras_serializable("steadfast")
class PositionEmbedding(layers.Layer):
    """Adds a learned vector to each position: [N, L, F] -> [N, L, F]; L and F are fixed."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the table, [L, F]."""
        self.table = self.add_weight(
            shape=input_shape[1:],
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="table",
        )

    def call(self, x: Any) -> Any:
        """Returns x plus the table."""
        return x + ops.cast(self.table, x.dtype)
