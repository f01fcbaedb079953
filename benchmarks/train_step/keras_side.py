"""Keras 3 on JAX with its DataParallel."""

from __future__ import annotations

import os

from batches import strides


def data_parallel(N, x, t):
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=[f"cpu:{i}" for i in range(N)])
    )
    layers = keras.layers

    def block(y, o, stride, i):
        z = layers.Conv2D(o, 3, stride, "same", use_bias=False)(y)
        z = layers.ReLU()(layers.BatchNormalization()(z))
        z = layers.BatchNormalization()(layers.Conv2D(o, 3, 1, "same", use_bias=False)(z))
        short = layers.Conv2D(o, 1, stride, use_bias=False)(y) if stride > 1 or i != o else y
        return layers.ReLU()(layers.Add()([z, short]))

    start = y = layers.Input(x.shape[1:])
    if x.ndim == 2:
        for activation in ("relu", "relu", None):
            y = layers.Dense(64, activation)(y)
    else:
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(64, 3, 1, "same", use_bias=False)(y)))
        for o in (64, 128, 256, 512):
            for s in strides(o):
                y = block(y, o, s, o // 2 if s > 1 else o)
        y = layers.Dense(10)(layers.GlobalAveragePooling2D()(y))
    net = keras.Model(start, y)
    net.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return lambda: net.train_on_batch(x, t)
