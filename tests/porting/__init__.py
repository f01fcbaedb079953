"""Small torch modules, each with one construct, for tests/test_port.py."""
