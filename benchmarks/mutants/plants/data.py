"""Mistakes in samplers and loaders."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/data/_samplers.py",
        ('yield g.randint(n, (k % 32,))', 'yield g.randint(n, (32,))[: k % 32]', "tests/test_samplers.py"),
        ('yield g.randperm(n)[: k % n]', 'if k % n:\n                yield g.randperm(n)[: k % n]', "tests/test_samplers.py"),
        ('if self.drop_last and len(batch) < self.batch_size', 'if self.drop_last and len(batch) <= self.batch_size', "tests/test_samplers.py"),
        ('range(self.batch_size, len(rest) + 1, self.batch_size)', 'range(self.batch_size, len(rest), self.batch_size)', "tests/test_samplers.py tests/test_data_loader.py"),
        ('total[-1] = 1', 'pass', "tests/test_samplers.py -k overflows", 0, "x / x is 1, or NaN where the sum overflows, and both are above every number that is looked up"),
        ('if self.replacement and self.num_samples > 1', 'if self.replacement', "tests/test_samplers.py -k weight"),
        ('[-math.log1p(-u) for u', '[-math.log(1 - u) for u', "tests/test_samplers.py"),
    ),
    *plants("jaxpar/data/_distributed_sampler.py",
        ('self.num_samples = n // R if drop_last else -(-n // R)', 'self.num_samples = -(-n // R)', "tests/test_samplers.py -k distributed"),
        ('_ORDER_DEPENDS_ON = ("num_replicas", "shuffle", "seed", "drop_last")', '_ORDER_DEPENDS_ON = ("num_replicas", "shuffle", "drop_last")', "tests/test_samplers.py -k \"state or distributed\""),
        ('self.epoch = state["epoch"]', 'self.epoch = 0', "tests/test_samplers.py tests/test_data_loader.py -k \"state or distributed\""),
        ('start = r * each + min(r, more)', 'start = r * each + more', "tests/test_samplers.py -k evaluated"),
        ('range(start, start + each + (r < more))', 'range(start, start + each + (r <= more))', "tests/test_samplers.py -k evaluated"),
        ('if not 0 <= rank < num_replicas', 'if not 0 <= rank <= num_replicas', "tests/test_samplers.py -k \"distributed or rank\""),
    ),
    *plants("jaxpar/data/_collate.py",
        ('floating = [d for d in dtypes if d.kind not in "biu"]', 'floating = []', "tests/test_data_loader.py -k collate"),
        ('all(-(2**63) <= x < 2**63 for x in batch)', 'all(-(2**63) <= x <= 2**63 for x in batch)', "tests/test_data_loader.py -k 64_bits"),
        ('if len(sample) != len(first):\n            raise KeyError', 'if len(sample) < len(first):\n            raise KeyError', "tests/test_data_loader.py -k drops"),
        ('float: np.float32', 'float: np.float64', "tests/test_data_loader.py -k collate"),
        ('return _numbers(batch, np.dtype(np.float64))', 'return _numbers(batch)', "tests/test_data_loader.py -k collate"),
    ),
    *plants("jaxpar/data/_data_loader.py",
        ('position.batches = resume["batches"]', 'pass', "tests/test_data_loader.py -k saved_again"),
        ('n = n // self.batch_size if self.drop_last else -(-n // self.batch_size)', 'n = n // self.batch_size', "tests/test_data_loader.py"),
        ('resume, self._resume = self._resume, None', 'resume = self._resume', "tests/test_data_loader.py -k \"state or resum\""),
        ('        self._draws.draw_seed()\n', '', "tests/test_data_loader.py"),
        ('own = None if generator is not None else self._draws', 'own = None', "tests/test_data_loader.py"),
        ('return {"rows": rows, "batch_size"', 'return {"rows": 0 * rows if rows else rows, "batch_size"', "tests/test_data_loader.py -k \"state or resum\""),
    ),
]
