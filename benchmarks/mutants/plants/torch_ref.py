"""Mistakes in the reference: torch's DataParallel on pretend devices."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("torch_ref/_accelerator.py",
        ('self._current = threading.local()', 'self._current = SimpleNamespace()', "tests/reference/test_pretend.py -k belongs_to_a_thread"),
        ('self._current.index = before', 'pass', "tests/reference/test_pretend.py tests/reference/test_rules_replicate.py tests/reference/test_rules_scatter.py tests/reference/test_rules_parallel_apply.py -k \"current or restored or device\""),
        ('if not all(0 <= index < self._count for index in indices)', 'if not all(index < self._count for index in indices)', "tests/reference/test_rules_construction.py"),
    ),
    *plants("torch_ref/_copies.py",
        ('chunk if device == source else chunk.clone()', 'chunk', "tests/reference/test_pretend.py tests/reference/test_rules_replicate.py tests/reference/test_rules_scatter.py tests/reference/test_rules_parallel_apply.py -k \"scatter or share or copies or alias\""),
        ('dtype=first.dtype', 'dtype=tensors[-1].dtype', "tests/reference/test_rules_gather.py -k dtype"),
        ('for tensor in inputs[2:]', 'for tensor in inputs[:1:-1]', "tests/reference/test_rules_gradients.py -k left_fold"),
        ('for _ in devices[1:]', 'for _ in devices', "tests/reference/test_rules_gradients.py"),
        ('if destination != -1:', 'if destination == -1:', "tests/reference/test_rules_gather.py -k target"),
    ),
    *plants("torch_ref/_pretend.py",
        ('if torch.cuda.device_count() >= n', 'if torch.cuda.device_count() > n', "tests/reference/test_pretend.py -k real"),
        ('if before is absent:', 'if before is None:', "tests/reference/test_pretend.py -k restored"),
        ('partial(torch.is_autocast_enabled, "cpu")', 'partial(torch.is_autocast_enabled, "cuda")', "tests/reference/test_pretend.py tests/reference/test_rules_replicate.py tests/reference/test_rules_scatter.py tests/reference/test_rules_parallel_apply.py -k autocast"),
    ),
]
