"""Every line that people write with torch.cuda, in jaxpar.

What it adds: devices, the current device, moving arrays and modules, and what happens when two devices
meet. torch's line stands behind each of ours.

    python examples/01_placement.py              # on GPUs, or on four virtual devices
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxpar

# os.environ["CUDA_VISIBLE_DEVICES"] = "0,1" works as in torch: set it before anything uses a device.
jaxpar.virtual_devices(4)  # without a GPU the CPU acts as four devices; with one this changes nothing

# ------------------------------------------------------------------------------------------ looking
print(jaxpar.is_available())  # torch.cuda.is_available()
print(jaxpar.device_count())  # torch.cuda.device_count()
print(jaxpar.current_device())  # torch.cuda.current_device()
print(jaxpar.get_device_name(0))  # torch.cuda.get_device_name(0)
print(jaxpar.memory_stats(0)["bytes_in_use"])  # torch.cuda.memory_allocated(0)

device = jaxpar.device("cuda:0" if jaxpar.is_available() else "cpu")  # torch.device(...)
last = jaxpar.device_count() - 1

# ------------------------------------------------------------------------------------------- arrays
x = np.ones((2, 3), np.float32)
on_device = jaxpar.to(x, device)  # x.to(device)
on_first = jaxpar.cuda(x)  # x.cuda()
on_last = jaxpar.cuda(x, last)  # x.cuda(i)
half = jaxpar.to(x, device, jnp.float16)  # x.to(device=device, dtype=torch.float16)
back = jaxpar.cpu(on_last)  # x.cpu()
print(jaxpar.device_of(on_last), half.dtype, jaxpar.device_of(back))  # x.device

with jaxpar.set_device(last):  # with torch.cuda.device(i):
    made = jnp.zeros(3)  # torch.zeros(3, device="cuda")
    assert made.devices() == on_last.devices()
assert jaxpar.current_device() == 0

assert (on_last * 2).devices() == on_last.devices()  # results stay where their inputs are
assert jaxpar.cuda(on_last, last) is on_last  # already there: the same object

# ------------------------------------------------------------------------------------------ modules
net = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
print(jaxpar.device_of(net))  # next(net.parameters()).device
jaxpar.cuda(net, last)  # net.cuda(i): in place, all parameters and buffers
print(jaxpar.device_of(net))
print(net(on_last).shape)

# ----------------------------------------------------------------------------------- two devices meet
if last > 0:
    try:
        jaxpar.device_of([on_first, on_last])
    except jaxpar.errors.MixedDevicesError as error:
        print("MixedDevicesError:", error)
    try:
        on_first + on_last
    except ValueError as error:
        print("ValueError from JAX:", str(error).split(".")[0])

# ------------------------------------------------------------------------------------- all of them
net = jaxpar.DataParallel(jaxpar.cuda(net, 0))  # nn.DataParallel(net)
print("rows on", net.device_ids, "->", net(np.ones((10, 3), np.float32)).shape)
