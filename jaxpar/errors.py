"""The exceptions that jaxpar raises. Each docstring gives a cause and a cure.

Each class also inherits the built-in class that fits, wherever that is sensible the one that PyTorch raises
in the same place. A message names the function, the path of the leaf, the numbers and the cure.
"""


class JaxparError(Exception):
    """Base class of all errors of jaxpar; never raised itself.

    >>> import jaxpar
    >>> issubclass(jaxpar.errors.DeviceError, jaxpar.errors.JaxparError)
    True
    """

    of_rank: int | None = None
    """The rank that had the problem, where several ranks raise it; `jaxpar launch` blames that rank."""


class DeviceError(JaxparError, ValueError):
    """A device that does not exist, was given twice, or has an unknown spelling.

    >>> import jaxpar
    >>> jaxpar.device("toaster")
    Traceback (most recent call last):
    jaxpar.errors.DeviceError: ...

    Cause: `DataParallel(net, device_ids=[0, 0])`, or `[0, 9]` on a host with 8 devices.
    Cure: `jaxpar.devices()` lists the devices; an integer id is a position in that list.
    """


class BackendError(JaxparError, RuntimeError):
    """JAX's backend cannot do this, or could have done it only before it started.

    Cause: `jaxpar.virtual_devices(8)` after the first array was made.
    Cure: make it the first line of the script, or set `JAXPAR_DEVICES=8` in the environment.
    """


class MisplacedError(JaxparError, RuntimeError):
    """A parameter or buffer is committed to a device on which the module cannot run.

    Cause: `jax.device_put(params, devices[1])` before `DataParallel(net, device_ids=[0, 2])`.
    Cure: leave the arrays where JAX made them, or move them to `device_ids[0]`.
    """


class MixedDevicesError(JaxparError, RuntimeError, ValueError):
    """Arrays that are used together are on different devices. JAX raises a ValueError, torch a RuntimeError.

    Cause: `embed(tokens)` on the CPU goes straight into a module on an accelerator.
    Cure: `jaxpar.to(x, device)` between the two, as `x.cuda(i)` in torch.
    """


class RowsError(JaxparError, ValueError):
    """Two arrays of one batch have different numbers of rows.

    >>> import jax.numpy as jnp, jaxpar
    >>> jaxpar.scatter((jnp.ones(2), jnp.ones(3)), jaxpar.Placement(tuple(jaxpar.devices()[:1])))
    Traceback (most recent call last):
    jaxpar.errors.RowsError: scatter: inputs[0] has 2 rows and inputs[1] has 3. ...

    Cause: `net(x, target)` with 8 rows in `x` and 7 in `target`. torch cuts the longer one silently.
    Cure: cut the batch yourself, or mark what holds no rows: `jaxpar.replicated(mask)`.
    """


class NoRowsError(JaxparError, RuntimeError):
    """A batch contains an array without axes, which cannot be split.

    Cause: `net(x, jnp.float32(0.5))`.
    Cure: pass `jaxpar.replicated(x)`, a Python number, which every replica gets, or one value for each row.
    """


class DimError(JaxparError, IndexError):
    """`dim` names an axis that a leaf does not have."""


class LeafError(JaxparError, TypeError):
    """A leaf that no device can hold: text, an object, a foreign tensor, a masked array, a long double, ...

    Cure: leave it out of the batch, or turn it into numbers first (`tensor.numpy()`, `array.filled(0)`).
    """


class RangeError(JaxparError, OverflowError):
    """A host number does not fit the type that JAX would give it.

    Cause: `2**40` in an int64 array while `jax_enable_x64` is off; JAX itself would wrap it to 0.
    Cure: `jax.config.update("jax_enable_x64", True)`, or smaller numbers.
    """


class DeletedError(JaxparError, RuntimeError):
    """An array was donated or deleted before it was passed, which can end JAX's process.

    Cure: keep the value that the donating step returned, not the one that was passed in.
    """


class GatherError(JaxparError, ValueError, RuntimeError):
    """The replicas' outputs do not fit together: structures (torch's ValueError) or shapes (RuntimeError)."""


class GatherTypeError(JaxparError, TypeError):
    """An output is of a kind that cannot be concatenated: a number, a text, an object.

    Cure: return arrays, `None`, or containers of these; `jnp.asarray(n)` for a number.
    """


class UninitializedError(JaxparError, ValueError):
    """A module whose parameters are shapes without values.

    Cause: a module made by `nnx.eval_shape`, or a Linen module without its variables.
    Cure: build the module (or run `.init`) first.
    """


class NestedError(JaxparError, RuntimeError):
    """A DataParallel was called inside a replica of a second one, which torch leaves undefined, or inside of
    `jax.shard_map`.

    Cure: wrap either the complete model or a part; inside of `jax.shard_map` call the module itself.
    """


class WorkerError(JaxparError, RuntimeError):
    """A worker of a `DataLoader` has died, or its data set has called `sys.exit`.

    Cause: the kernel ended it when memory was used up, or native code of the data set has crashed.
    Cure: the message names the worker, the signal and the batch; fewer workers, or `num_workers=0`.
    """


class CollectiveError(JaxparError, RuntimeError):
    """A module communicates between replicas while these have different numbers of rows.

    Cause: `pmax` or `all_gather`, which would hang; `pmean`, which would take a mean of means for the mean.
    Cure: `psum`, also of the counts; the same number of rows for all replicas; or no collective.
    """


class CountError(JaxparError, AssertionError):
    """Modules, inputs, keyword arguments and devices differ in number (torch's AssertionError)."""


class LossError(JaxparError, RuntimeError, TypeError):
    """A loss function returned something that has no gradient: not one real number.

    Cause: `lambda net, x, y: (net(x) - y) ** 2`, a loss for each row.
    Cure: `.mean()`; with more to return than the loss, `has_aux=True`.
    """


class ParametersError(JaxparError, RuntimeError):
    """DistributedDataParallel cannot train a module: nothing to train, or another module on another rank.

    Cause: a module without `nnx.Param`; ranks that build models of different sizes.
    Cure: wrap what has parameters; build the same module on every rank (values need not be equal).
    """


class BatchError(JaxparError, ValueError):
    """A batch without rows, or with a structure different from the batches before.

    Cause: a dict with a key more than at the first step; an empty last batch: its mean loss is NaN.
    Cure: give every batch the same structure; leave empty ones out.
    """


class OptimizerError(JaxparError, ValueError):
    """An optimizer that was not made for the module it is to train.

    Cause: `nnx.Optimizer(net, tx)` before `net = jaxpar.DataParallel(net)`.
    Cure: make the optimizer from the very object that is given to `train_step`.
    """


class HyperparameterError(JaxparError, KeyError, ValueError):
    """A hyperparameter that the optimizer's state does not hold, so that it cannot be read or set.

    Cause: `optimizer.lr = 0.01` where the rate is a schedule, or optax's without `inject_hyperparams`.
    Cure: make the optimizer with a number, `optim.adam(lr=0.1)`.
    """

    __str__ = Exception.__str__  # KeyError's is the repr


class NonFiniteError(JaxparError, FloatingPointError):
    """A gradient was infinite or not a number; the message names the first one and the update.

    Cause: a learning rate that is too high; `jnp.log(0)`; float16 without loss scaling.
    Cure: see the message; `on_nonfinite="skip"` leaves such updates out.
    """


class GradientError(JaxparError, RuntimeError):
    """A gradient was asked for where nothing would average it over the replicas.

    Cause: `nnx.grad(lambda net: loss(net(x), y))(net)` with a DistributedDataParallel.
    Cure: `net.value_and_grad(loss_fn)(x, y)`, which takes the mean over all replicas of all processes.
    """


class StagedError(JaxparError, RuntimeError):
    """Something that works between compiled programs was called inside of one (`jax.jit`, `nnx.jit`).

    Cause: `net.value_and_grad(loss_fn)(x)` in a jitted function, with several processes or `no_sync()`.
    Cure: call it outside, or use `jaxpar.train_step`, which compiles the whole step.
    Cause: a step of `train_step` inside of `jax.jit`, `scan`, `vmap` or `grad`. Cure: `step.pure()`.
    """


class MatchError(JaxparError, RuntimeError):
    """Weights and a module do not fit together: names, shapes, dtypes, or a value without a place.

    Cause: `parity.load_torch(net, model)` where a layer is called `fc1` here and `head` there.
    Cure: `mapping={"head": "fc1"}`; `parity.match(net, model)` prints a mapping to start from.
    """


class FileError(JaxparError, ValueError):
    """A file of weights that is damaged, of another kind, or would run code.

    Cause: a truncated download; a pickle of whole objects where tensors are expected.
    Cure: get the file again, or save the `state_dict()` alone, best as `.safetensors`.
    """


class ParityError(JaxparError, AssertionError):
    """Two models that should be the same are not; the message is the table of differences.

    Cause: `epsilon=1e-6` in Flax, 1e-5 in torch; the message names the first layer that differs.
    Cure: follow the message, or the page on reading a comparison if it names no cause.
    """


class ProgramError(JaxparError, AssertionError):
    """A compiled training step is wrong, or nothing proves that it is right; the message is the report.

    Cause: a gradient that is not reduced over the devices, or twice.
    Cure: follow the finding, which names the leaf, the line and the reduction.
    """


class NotDeterministicError(JaxparError, RuntimeError):
    """A model gives two results for the same batch, so it cannot be compared with a second model.

    Cause: random numbers other than dropout; a counter in the module.
    Cure: compare in evaluation mode, or remove the randomness from the model for the comparison.
    """


class SpecError(JaxparError, ValueError):
    """A specification for the command line cannot be used: the file, or an option that contradicts the file.

    Cause: a name that is missing in the file; an error in the file, which is shown with its line.
    Cure: see `jaxpar parity --help` for what the file defines.
    """


class PortError(JaxparError, ValueError):
    """`jaxpar.parity.port` cannot begin: it has no module, no source, or no call to watch.

    Cause: a constructor's argument that cannot be written down, such as a tensor; a class without a file.
    Cure: give a function that makes the module, defined at the top of a file, with the inputs of one call.
    """


class MaskError(JaxparError, ValueError):
    """Dropout is called in other places, or on other shapes, in Flax than in torch.

    Cause: a Dropout that one of the two models has not, or has in evaluation mode; random numbers in a model.
    Cure: make both drop in the same places, or compare with training=False.
    """


class MetricError(JaxparError, ValueError):
    """A metric that is not a number, a step that goes back, or a file that does not hold metrics.

    Cause: `log.log(step, loss=losses)` with one loss for each row.
    Cure: `loss=losses.mean()`; to overwrite existing steps, `log.resume_from(step)`.
    """


class CheckpointError(JaxparError, RuntimeError):
    """A step that cannot be saved or restored: damaged, for a different module, missing, no room, locked.

    Cause: `checkpointer.restore(net=net)` where `net` is wider than the one that was saved.
    Cure: build the object as it was; `restore()` without a step takes the newest one that is not damaged.
    """


class GroupError(JaxparError, ValueError):
    """A process group is missing, exists already, or cannot be joined like this.

    Cause: `get_rank()` before `init_process_group()`; RANK is not set, or not below WORLD_SIZE.
    Cure: `init_process_group()` once and first; torchrun and `jaxpar launch` set the variables.
    """


class DistributedError(JaxparError, RuntimeError):
    """Processes did not find each other, do not fit together, or one of them is gone.

    Cause: a rank that did not start; another program on rank 0's port; two processes with one rank.
    Cure: the message names the ranks, the address and what to look at.
    """


class DivergenceError(JaxparError, RuntimeError):
    """Processes or replicas that should be the same are not.

    Cause: a batch with a different shape on one rank; a different library, device or configuration.
    Cure: the message names the rank, the field and both values, or both calls and their lines.
    """
