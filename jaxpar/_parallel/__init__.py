"""torch.nn.parallel: a batch goes out to the replicas, runs on all of them, and comes back.

The files follow a batch through one call: `placement` chooses the devices, `scatter` splits the batch into
`shards`, `replicate` copies the module to every device, `parallel_apply` runs it, and `gather` joins the
outputs. `data_parallel` combines these steps. `program` compiles one function for every replica with one of
the `backends`, from the form that `modules` gives every kind of module.
"""
