"""`jaxpar devices` and `jaxpar env`: what this host has, for people and as JSON.

    devices() ─► table.look ─► Row, Row, ... ─► table.text | table.document
    nvml.readings ──┘
    environment.environment ─► a dict ─► environment.text | JSON

Looking returns values, and rendering takes them. Nothing here needs a GPU, and whatever is broken on the
host, there is no traceback. torch's counterparts are nvidia-smi and `python -m torch.utils.collect_env`.
"""
