from dataclasses import dataclass

import jax

from .._activation import ActivationLayer

class ReLU(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class ReLU6(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class LeakyReLU(ActivationLayer):
    negative_slope: float = 0.01
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class ELU(ActivationLayer):
    alpha: float = 1.0
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class CELU(ActivationLayer):
    alpha: float = 1.0
    def __call__(self, x: jax.Array) -> jax.Array: ...

class SELU(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class GELU(ActivationLayer):
    approximate: str = "none"
    def __call__(self, x: jax.Array) -> jax.Array: ...

class SiLU(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Mish(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Sigmoid(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class LogSigmoid(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Tanh(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Hardtanh(ActivationLayer):
    min_val: float = -1.0
    max_val: float = 1.0
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Hardsigmoid(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Hardswish(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Softsign(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Softplus(ActivationLayer):
    beta: float = 1.0
    threshold: float = 20.0
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Softshrink(ActivationLayer):
    lambd: float = 0.5
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Hardshrink(ActivationLayer):
    lambd: float = 0.5
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Tanhshrink(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Threshold(ActivationLayer):
    threshold: float
    value: float
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Softmax(ActivationLayer):
    dim: int = -1
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class LogSoftmax(ActivationLayer):
    dim: int = -1
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class GLU(ActivationLayer):
    dim: int = -1
    def __call__(self, x: jax.Array) -> jax.Array: ...
