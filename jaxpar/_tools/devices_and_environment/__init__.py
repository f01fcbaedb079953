"""`jaxpar devices` and `jaxpar env`: what this host has, for people and as JSON.

    devices() ─► table.look ─► Row, Row, ... ─► table.text | table.document
    nvml.readings ──┘
    environment.environment ─► a dict ─► environment.text | JSON

Looking returns values, rendering takes them. Nothing here needs a GPU, and nothing that is broken
on the host ends in a traceback.
"""
