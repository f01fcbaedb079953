"""Digits in Keras 3 on JAX: one process, keras.distribution.DataParallel over its devices."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
from digits import BATCH, EPOCHS, RATE, data, save, weights

keras.distribution.set_distribution(
    keras.distribution.DataParallel(devices=keras.distribution.list_devices())
)
start = weights()
net = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(128),
        keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
        keras.layers.ReLU(),
        keras.layers.Dense(10),
    ]
)
first, norm, _, last = net.layers
for layer, name in ((first, "0"), (last, "3")):
    layer.set_weights([start[f"{name}.weight"].T, start[f"{name}.bias"]])
net.compile(
    optimizer=keras.optimizers.SGD(RATE, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
images, labels = data()
whole = (
    len(images) // BATCH * BATCH
)  # a batch must divide evenly over the devices: the last 5 rows are dropped
net.fit(images[:whole], labels[:whole], batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)

names = ("weight", "bias", "running_mean", "running_var")
trained = {f"1.{name}": value for name, value in zip(names, norm.get_weights(), strict=True)}
for layer, name in ((first, "0"), (last, "3")):
    kernel, bias = layer.get_weights()
    trained |= {f"{name}.weight": kernel.T, f"{name}.bias": bias}
save(trained)
