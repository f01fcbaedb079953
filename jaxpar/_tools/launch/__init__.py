"""`jaxpar launch`: run a script in n processes of this host, as torchrun does, and restart them together.

When one process fails, the others block in a collective, and neither JAX on CPUs nor NCCL lets them continue
without the failed peer. `supervise` starts gangs of processes until one is done: `gang` is one attempt, and
`watch` decides how it ended. `worker` is the only file that runs in the processes.
"""
