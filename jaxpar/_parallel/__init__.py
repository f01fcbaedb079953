"""torch.nn.parallel: a batch goes out to the replicas, runs on all of them, and comes back.

The files in the order in which a batch meets them: `placement` says where, `scatter` cuts the batch into
`shards`, `replicate` puts the module on every device, `parallel_apply` runs it, `gather` joins the outputs;
`data_parallel` is the sentence made of these words. Below them, `program` is one function on every replica,
compiled by one of the `backends` from the form that `modules` gives every kind of module.
"""
