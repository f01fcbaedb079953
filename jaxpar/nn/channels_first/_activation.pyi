from dataclasses import dataclass

import jax

from .._activation import ActivationLayer, InPlaceActivation

@dataclass(eq=False, repr=False)
class ReLU(InPlaceActivation):
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class ReLU6(InPlaceActivation):
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class LeakyReLU(InPlaceActivation):
    negative_slope: float = 0.01
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class ELU(InPlaceActivation):
    alpha: float = 1.0
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class CELU(InPlaceActivation):
    alpha: float = 1.0
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class SELU(InPlaceActivation):
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class GELU(ActivationLayer):
    approximate: str = "none"
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class SiLU(InPlaceActivation):
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Mish(InPlaceActivation):
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Sigmoid(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class LogSigmoid(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Tanh(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Hardtanh(InPlaceActivation):
    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Hardsigmoid(InPlaceActivation):
    inplace: bool = False
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class Hardswish(InPlaceActivation):
    inplace: bool = False
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
class Threshold(InPlaceActivation):
    threshold: float
    value: float
    inplace: bool = False
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
class Softmin(ActivationLayer):
    dim: int = -1
    def __call__(self, x: jax.Array) -> jax.Array: ...

class Softmax2d(ActivationLayer):
    def __call__(self, x: jax.Array) -> jax.Array: ...

@dataclass(eq=False, repr=False)
class GLU(ActivationLayer):
    dim: int = -1
    def __call__(self, x: jax.Array) -> jax.Array: ...
