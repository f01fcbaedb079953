"""The protocol between ranks, as a pure state machine: no clock, no socket, no thread and no JAX.

A call is a generator that yields effects and receives the texts that it reads; a message from another rank
returns effects. `exchange.run` performs them with the coordinator's store, and tests/protocol_model.py with
every order in which ranks may run.
"""
