"""Wrong arguments: an error when the object is made, which names the function and the argument."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import jaxpar
from jaxpar import comm_hooks, data, distributed, nn, optim
from jaxpar._arguments import whole
from jaxpar._arguments.checked import checked
from jaxpar._arguments.kinds import accepts_of
from jaxpar.nn._array_types import Finite
from jaxpar.optim import lr_scheduler, swa_utils

ROWS = np.arange(6.0)


def net() -> nnx.Module:
    return nnx.Linear(2, 1, rngs=nnx.Rngs(0))


def optimizer() -> optim.Optimizer:
    return optim.Optimizer(net(), optim.sgd(lr=0.1, momentum=0.9))


def rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


CASES = {
    "Embedding: num_embeddings is -1": lambda path: nn.Embedding(-1, 2, rngs=rngs()),
    "Embedding: embedding_dim is -2": lambda path: nn.channels_first.Embedding(1, -2, rngs=rngs()),
    "Embedding: num_embeddings is '3'": lambda path: nn.Embedding("3", 2, rngs=rngs()),
    "EmbeddingBag: num_embeddings is -1": lambda path: nn.EmbeddingBag(-1, 2, rngs=rngs()),
    "BatchNorm: num_features is -1": lambda path: nn.BatchNorm(-1),
    "BatchNorm1d: num_features is 2.5": lambda path: nn.channels_first.BatchNorm1d(2.5),
    "gather: outputs are NoneType": lambda path: jaxpar.gather(None),
    "gather: dim is 'x'": lambda path: jaxpar.gather([jnp.ones(2)], dim="x"),
    "parallel_apply: modules are NoneType": lambda path: jaxpar.parallel_apply(None, None),
    "each_device: tx is None": lambda path: jaxpar.each_device(None),
    "Checkpointer: directory is 'a\\x00b'": lambda path: jaxpar.Checkpointer("a\0b"),
    "Checkpointer: directory is ''": lambda path: jaxpar.Checkpointer(""),
    "Checkpointer: directory is 3": lambda path: jaxpar.Checkpointer(3),
    "Checkpointer: save_every is True": lambda path: jaxpar.Checkpointer(path, save_every=True),
    "Checkpointer: keep_best is 0": lambda path: jaxpar.Checkpointer(path, keep_best=0),
    "Checkpointer.save: the step is True": lambda path: jaxpar.Checkpointer(path).save(True, x=1),
    "Checkpointer.save: the step is -1": lambda path: jaxpar.Checkpointer(path).save(-1, x=1),
    "Checkpointer.save: the step is 1.0": lambda path: jaxpar.Checkpointer(path).save(1.0, x=1),
    "init_process_group: rank is '0'": lambda path: distributed.init_process_group(rank="0"),
    "init_process_group: world_size is 2.5": lambda path: distributed.init_process_group(world_size=2.5),
    "init_process_group: init_method is 3": lambda path: distributed.init_process_group(init_method=3),
    "init_process_group: timeout is 'a'": lambda path: distributed.init_process_group(timeout="a"),
    "DistributedSampler: num_replicas is 2.0": lambda path: data.DistributedSampler(ROWS, 2.0, 0),
    "EvaluationSampler: rank is '0'": lambda path: data.EvaluationSampler(ROWS, 2, "0"),
    "DistributedSampler: seed is 'a'": lambda path: data.DistributedSampler(ROWS, 2, 0, seed="a"),
    "DataLoader: num_workers is '2'": lambda path: data.DataLoader(ROWS, 2, num_workers="2"),
    "CosineAnnealingLR: T_max is 0": lambda path: lr_scheduler.CosineAnnealingLR(optimizer(), 0),
    "CosineAnnealingLR: T_max is -1": lambda path: lr_scheduler.CosineAnnealingLR(optimizer(), -1),
    "CyclicLR: step_size_up is 0": lambda path: lr_scheduler.CyclicLR(optimizer(), 0.1, 0.2, step_size_up=0),
    "cyclic_lr: step_size_up is -1": lambda path: lr_scheduler.cyclic_lr(0.1, 0.2, step_size_up=-1),
    "StepLR: step_size is '3'": lambda path: lr_scheduler.StepLR(optimizer(), "3"),
    "StepLR: step_size is 0": lambda path: lr_scheduler.StepLR(optimizer(), 0),
    "PolynomialLR: total_iters is -1": lambda path: lr_scheduler.PolynomialLR(optimizer(), -1),
    "MultiStepLR: milestones is [-1]": lambda path: lr_scheduler.MultiStepLR(optimizer(), [-1]),
    "ReduceLROnPlateau.step: the metric is 'low'": lambda path: lr_scheduler.ReduceLROnPlateau(
        optimizer()
    ).step("low"),
    "MultiStepLR: milestones is 'ab'": lambda path: lr_scheduler.MultiStepLR(optimizer(), "ab"),
    "ReduceLROnPlateau.step: the metric is None": lambda path: lr_scheduler.ReduceLROnPlateau(
        optimizer()
    ).step(None),
    "StepLR.load_state_dict: the state has no '_last_lr'": lambda path: lr_scheduler.StepLR(
        optimizer(), 3
    ).load_state_dict({}),
    "ChainedScheduler.load_state_dict: the state has no '_schedulers'": lambda path: (
        lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(optimizer(), 3)]).load_state_dict(
            {"_last_lr": [0.1]}
        )
    ),
    "powersgd: matrix_approximation_rank is 0": lambda path: comm_hooks.powersgd(0),
    "powersgd: matrix_approximation_rank is -1": lambda path: comm_hooks.powersgd(-1),
    "powersgd: matrix_approximation_rank is '1'": lambda path: comm_hooks.powersgd("1"),
    "MetricsLog: directory is None": lambda path: jaxpar.MetricsLog(None),
    "train_step: loss_fn is None": lambda path: jaxpar.train_step(
        (module := net()), nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param), None
    ),
    "DistributedDataParallel: bucket_cap_mb is 'x'": lambda path: jaxpar.DistributedDataParallel(
        net(), bucket_cap_mb="x"
    ),
    "Optimizer: model is None": lambda path: optim.Optimizer(None, optim.sgd(lr=0.1)),
    "Optimizer.lr: -1 is negative": lambda path: setattr(optimizer(), "lr", -1),
    "AveragedModel: model is None": lambda path: swa_utils.AveragedModel(None),
    "beat: step is nan": lambda path: jaxpar.beat(float("nan")),
}


@pytest.mark.parametrize("text", CASES)
def test_a_wrong_argument_is_refused_by_name(text, tmp_path):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        CASES[text](tmp_path / "run")
    assert str(caught.value).startswith(text)
    assert not (tmp_path / "run").exists()


@given(st.integers(-3, 3), st.integers(-2, 2), st.sampled_from([int, np.int32, np.uint8, np.int64]))
def test_whole_numbers_of_every_type_are_taken(value, least, kind):
    if kind is np.uint8:
        value = abs(value)
    if value < least:
        with pytest.raises(ValueError, match=rf"^f: n is {value}; it must be {least} or more\.$"):
            whole("f", "n", kind(value), least)
    else:
        number = whole("f", "n", kind(value), least)
        assert (number, type(number)) == (value, int)


@pytest.mark.full
@given(st.none() | st.floats() | st.text() | st.booleans() | st.lists(st.integers()) | st.binary())
def test_anything_else_is_no_whole_number(value):
    with pytest.raises(TypeError, match=r"^f: n is .*; it must be a whole number\.$"):
        whole("f", "n", value)


def read(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)


@given(st.text(), st.booleans())
def test_a_path_is_any_name_that_a_system_can_have(name, is_object):
    value = Path(name) if is_object else name
    name = os.fspath(value)
    if name and "\0" not in name:
        assert checked(read)(value) == name
    else:
        with pytest.raises(
            ValueError, match=r"^read: path is .*; it must be a path, neither empty nor with NUL\.$"
        ):
            checked(read)(value)


def test_arrays_with_one_number_are_taken_as_before():
    assert whole("f", "n", jax.device_get(jnp.int32(3))) == 3


@pytest.mark.parametrize("kept", [FloatingPointError, MemoryError, NotImplementedError])
@pytest.mark.parametrize("raw", [ZeroDivisionError, KeyError, AttributeError])
def test_only_errors_that_describe_the_librarys_code_become_value_errors(kept, raw):
    def failing(x: int, error: str) -> None:
        raise {"kept": kept, "raw": raw}[error]("the reason")

    with pytest.raises(kept, match="the reason"):
        checked(failing)(1, "kept")
    with pytest.raises(ValueError, match=rf"failing was called with x=1, .*{raw.__name__}"):
        checked(failing)(1, "raw")


def test_a_keyword_of_the_user_may_be_called_like_a_positional_parameter():
    """As in `checkpointer.save(3, step=step)`."""

    def save(step: int = 0, /, **state: object) -> object:
        return step, state

    assert checked(save)(step="any object") == (0, {"step": "any object"})
    assert checked(save)(3, step="any object") == (3, {"step": "any object"})
    with pytest.raises(TypeError, match=r"save: step is 'x'; it must be int"):
        checked(save)("x", step=3)


class Running:
    """An array that a device still computes; to read it is an error here, and would be a wait there."""

    dtype, shape = np.dtype(np.float32), ()

    def is_ready(self):
        return False

    def __array__(self, *_):
        raise AssertionError("a check waits for a device")


@pytest.mark.parametrize("annotation", [float, Finite])
def test_a_check_does_not_wait_for_a_device(annotation):
    assert accepts_of(annotation)(Running())
    assert not accepts_of(annotation)(jnp.asarray(np.nan))
