"""`jaxpar devices` and `jaxpar env`: this host's devices and software, as text and as JSON.

    devices() ─► table.look ─► Row, Row, ... ─► table.text | table.document
    nvml.readings ──┘
    environment.environment ─► a dict ─► environment.text | JSON

Reading and rendering are separate. Neither command needs a GPU or ends with a traceback, whatever is broken
on the host. torch's counterparts are nvidia-smi and `python -m torch.utils.collect_env`.
"""
