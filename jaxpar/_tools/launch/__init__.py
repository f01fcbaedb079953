"""`jaxpar launch`: a script in n processes of this host, watched, and restarted together.

torch's counterpart is torchrun; the processes get the variables that it sets. When one process fails, the
others wait for it in a collective, and neither JAX on CPUs nor NCCL lets them go on without it. So all of
them (the gang) are ended and restarted together. Unlike torchrun, this notices a rank that hangs, and gives
up when restarts lead nowhere. It serves one host; for several there are torchrun, SLURM and Kubernetes.

`supervise` starts gangs until one is done: `gang` is the processes of one attempt, `watch` decides how it
ended, `report` says so. `worker` is the only file that runs in the processes.
"""
