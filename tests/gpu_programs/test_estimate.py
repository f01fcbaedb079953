"""estimate from programs for GPUs: what XLA's compiler makes of a step, against numbers by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import jaxpar
from jaxpar._tools.estimate.hlo import read
from jaxpar._tools.estimate.schedule import Kernel, LaneSchedule, events

WIDTH, DEPTH, ROWS = 2048, 6, 512
WEIGHTS = 4 * DEPTH * WIDTH**2


class Deep(nnx.Module):
    """Products only: each layer's gradient is a message of 17 MB."""

    def __init__(self):
        layers = [nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=nnx.Rngs(0)) for _ in range(DEPTH)]
        self.layers = nnx.List(layers)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


def loss_fn(net, x):
    return jnp.mean(net(x) ** 2)


def told(card: str = "h100", rows: int = ROWS, **options) -> jaxpar.Estimate:
    batch = jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)
    return jaxpar.estimate(Deep, optax.sgd(0.1, momentum=0.9), loss_fn, batch, device=card, **options)


@pytest.fixture(scope="module")
def found() -> jaxpar.Estimate:
    return told()


def test_it_is_the_cards_own_program(found):
    assert found.why == ""
    assert found.platform == "NVIDIA H100 80GB HBM3"


def test_the_bytes(found):
    memory = found.memory
    assert memory.parameters == memory.optimizer == WEIGHTS
    assert memory.batch == 4 * ROWS * WIDTH
    assert memory.gradients == WEIGHTS
    # Between one layer's results, and all of them three times.
    assert 4 * ROWS * WIDTH <= memory.activations <= 3 * DEPTH * 4 * ROWS * WIDTH


def test_the_operations_are_those_of_the_network(found):
    """Forward, by weights and by inputs; the first layer's input has no gradient."""
    products = 2 * ROWS * WIDTH**2 * (3 * DEPTH - 1)
    assert sum(slot.flops for slot in found.schedule.slots) == products


def test_every_gradient_is_exchanged_once(found):
    assert 0 <= found.traffic.bytes - WEIGHTS <= 8  # and the loss


def begins_before_the_end(schedule: LaneSchedule) -> None:
    """All-reduces start while there is something left to compute, and the device computes beside them."""
    assert len(schedule.exchanges) > 1
    last = [slot for slot in schedule.slots if slot.lane == "compute" and slot.flops][-1]
    assert schedule.exchanges[0].begin < last.begin
    assert schedule.overlap > 0.1  # there is more to exchange than to compute


def test_the_exchange_lies_beside_the_backward_pass(found):
    begins_before_the_end(found.schedule)


def test_a_step_whose_exchange_comes_last_is_found(found):
    last = found.schedule.slots[-1].end
    late = (
        dataclasses.replace(slot, begin=last, hidden=0.0) if slot.lane == "exchange" else slot
        for slot in found.schedule.slots
    )
    with pytest.raises(AssertionError):
        begins_before_the_end(LaneSchedule(tuple(late)))


def test_a_faster_card_is_faster(found):
    assert found.step < told("a100").step


def test_hosts_change_the_exchange_and_not_the_device(found):
    many = told(hosts=128)
    assert many.points[-1].devices == 1024
    assert many.memory == found.memory
    assert many.traffic.bytes == found.traffic.bytes
    assert many.schedule.communicating > found.schedule.communicating


def test_the_largest_batch_fills_a_device():
    small = jaxpar.Hardware.of("h100", memory=1e9)
    most = told(small, watch_batch=True).largest_batch
    assert most is not None
    assert most.compiles <= 6
    assert told(small, most.rows).fits
    assert not told(small, most.rows + most.rows // 10).fits


# --------------------------------------------------------------- what the compiler makes of each sort


def kernels(f, *shapes) -> list[Kernel]:
    gpu = jaxpar.topology("h100", devices=1)
    there = jax.sharding.SingleDeviceSharding(gpu[0])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=there) for shape in shapes]
    compiled = jax.jit(f).trace(*shapes).lower().compile(compiler_options={"xla_gpu_autotune_level": 0})
    done = events(read(compiled.as_text()), jaxpar.Hardware.of("h100").seconds)
    return [event for event in done if isinstance(event, Kernel)]


def convolve(x, w):
    return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def gradients(f):
    def summed(*args):
        return (f(*args).astype(jnp.float32) ** 2).sum()

    return jax.grad(summed, (0, 1))


def turns(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=7)[0]


def either(x, w):
    return jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x @ w)


CUBE = 2 * 256**3
CONVOLUTION = 2 * (8 * 16 * 16 * 64) * (3 * 3 * 32)
SORTS = {
    "a product": (jnp.matmul, [(256, 256)] * 2, CUBE),
    "a product by its rows": (gradients(jnp.matmul), [(256, 256)] * 2, 3 * CUBE),
    "a batch of products": (jnp.matmul, [(5, 256, 256)] * 2, 5 * CUBE),
    "a convolution": (convolve, [(8, 32, 32, 32), (3, 3, 32, 64)], CONVOLUTION),
    "its gradients": (gradients(convolve), [(8, 32, 32, 32), (3, 3, 32, 64)], 3 * CONVOLUTION),
    "a loop": (turns, [(256, 256)] * 2, 7 * CUBE),
    "the longest branch": (either, [(256, 256)] * 2, 2 * CUBE),
    "no product": (jnp.add, [(256, 256)] * 2, 0),
}


@pytest.mark.parametrize("sort", SORTS)
def test_operations_of(sort):
    f, shapes, flops = SORTS[sort]
    found = kernels(f, *shapes)
    assert sum(kernel.work.flops * kernel.turns for kernel in found) == flops
    assert all(kernel.work.counted for kernel in found)


class Attends(nnx.Module):
    def __call__(self, x):
        return jax.nn.dot_product_attention(x, x, x, is_causal=True, implementation="cudnn")


def test_cudnns_attention_needs_no_cudnn_here():
    b, t, heads, width = 2, 256, 4, 64
    shape = jax.ShapeDtypeStruct((b, t, heads, width), jnp.bfloat16)

    class Net(nnx.Module):
        def __init__(self):
            self.scale, self.attends = nnx.Param(jnp.ones((), jnp.bfloat16)), Attends()

        def __call__(self, x):
            return self.attends(x * self.scale)

    found = jaxpar.estimate(Net, None, lambda net, x: net(x).astype(jnp.float32).sum(), shape, devices=1)
    one = 2 * b * heads * t * t * width // 2  # of the scores, half are masked
    assert sum(slot.flops for slot in found.schedule.slots) == (2 + 5) * one
    assert found.uncounted == ()
