"""`jaxpar launch`: a script in n processes of this host, watched, and restarted together.

torch's counterpart is torchrun, whose variables the processes get. One process that fails takes all
others with it, because they wait for it in a collective, and what restarts is always the whole gang:
neither JAX on CPUs nor NCCL lets the survivors go on. Several hosts are torchrun's, SLURM's or
Kubernetes' business.

`worker` is the only file here that runs in the processes; `supervise` starts gangs until one is done.
"""
