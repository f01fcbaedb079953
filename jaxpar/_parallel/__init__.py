"""torch.nn.parallel: a batch goes out to the replicas, runs on all of them, and comes back.

`placement` chooses the devices, `scatter` splits the batch into `shards`, `replicate` copies the module to
every device, `parallel_apply` runs it, and `gather` joins the outputs.
"""
