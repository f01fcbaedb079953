"""Contracts: a folder with what a port must compute, and a program's answer whether one does.

making:   torch_side.py ─► contract/ (contract.json, trace/, port.py, README.md)
checking: contract/, port.py ─► against ─► edits, tried one by one ─► an answer in JSON
"""
