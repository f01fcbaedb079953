"""Mistakes in the training step."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/_training/update.py",
        ('factor = factor / extra["scale"]', 'factor = factor * 1', "tests/test_train_step.py -k overflow"),
        ('factor = 1 / self.accumulate', 'factor = 1', "tests/test_train_step.py -k accumulating"),
        ('extra["good"] + 1 >= self.precision.growth_interval', 'extra["good"] >= self.precision.growth_interval', "tests/test_train_step.py -k \"overflow or scale or precision\""),
        ('jnp.where(good & ~grown, extra["good"] + 1, 0)', 'jnp.where(good & ~grown, extra["good"] + 1, extra["good"])', "tests/test_train_step.py -k \"overflow or scale or precision\""),
        ('jnp.where(good & ~grown, extra["good"] + 1, 0)', 'jnp.where(good, extra["good"] + 1, 0)', "tests/test_train_step.py -k \"overflow or scale or precision\""),
        ('extra["scale"] / 2', 'extra["scale"] / 4', "tests/test_train_step.py -k \"overflow or scale or precision\""),
        ('good &= leaf == NONE', 'pass', "tests/test_train_step.py -k \"finite or skip\""),
        ('leaf = jnp.where(leaf == NONE, first, leaf)', 'leaf = first', "tests/test_train_step.py -k \"finite or skip\""),
        ('jnp.where(leaf == NONE, update + 1, update)', 'update + 1', "tests/test_train_step.py -k \"finite or skip\""),
        ('small = 2 * nbytes <= 2**25', 'small = nbytes <= 2**25', "tests/test_train_step.py -k \"large or donated\""),
        ('for i, value in changes.items():\n            after[i] = value\n', '', "tests/test_train_step.py -k \"by_hand\""),
        ('if i not in trained and wanted(path, leaf)', 'if i not in trained or wanted(path, leaf)', "tests/test_train_step.py -k integers"),
        ('if new[i].shape != values[i].shape', 'if len(new[i].shape) != len(values[i].shape)', "tests/test_train_step.py -k other_shapes"),
    ),
]
