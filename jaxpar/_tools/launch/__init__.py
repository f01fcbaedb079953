"""`jaxpar launch`: run a script in n processes of this host, and restart them together.

torch's counterpart is torchrun, whose environment variables the processes get. When one process fails, the
others block in a collective, and neither JAX on CPUs nor NCCL lets them continue without the failed peer. So
all processes (the gang) are ended and restarted together. Unlike torchrun, `jaxpar launch` detects a hanging
rank, and gives up when restarts make no progress. It serves one host; for several use torchrun, SLURM or
Kubernetes.

`supervise` starts gangs until one is done: `gang` is the processes of one attempt, `watch` decides how the
attempt ended, `report` prints that. `worker` is the only file that runs in the processes.
"""
