"""The names in a trace's files."""

FORMAT = "jaxpar parity trace"
VERSION = 1
ARRAYS, MANIFEST = "arrays.safetensors", "trace.json"
