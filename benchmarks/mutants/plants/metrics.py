"""Mistakes in logs and progress."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/_metrics/log.py",
        ('if self._last is not None and step < self._last', 'if self._last is not None and step <= self._last', "tests/test_metrics.py"),
        ('for step, values in rows() if step < end', 'for step, values in rows() if step <= end', "tests/test_metrics.py -k \"resume or goes_on\""),
        ('merged.setdefault(step, {}).update(values)', 'merged[step] = dict(values)', "tests/test_metrics.py"),
        ('wait or all(map(is_ready', 'wait or any(map(is_ready', "tests/test_metrics.py -k waits_for_its_last"),
        ('values.get(name, np.nan)', 'values.get(name, 0)', "tests/test_metrics.py"),
    ),
    *plants("jaxpar/_metrics/rows.py",
        ('os.ftruncate(file.fileno(), size)', 'pass', "tests/test_metrics.py -k full_disk"),
        ('error.filename = error.filename or os.fspath(path)', 'pass', "tests/test_metrics.py -k full_disk"),
    ),
    *plants("jaxpar/_metrics/rows.py",
        ('array.dtype.kind in "biu"', 'array.dtype.kind in "iu"', "tests/test_metrics.py"),
        ('if value.shape != ()', 'if len(value.shape) > 1', "tests/test_metrics.py -k bad_values"),
    ),
    *plants("jaxpar/_metrics/progress.py",
        ('if leave and self.printed != self.of.done', 'if leave', "tests/test_progress.py -k \"line or total\""),
        ('group.rank == 0 if group else', 'True if group else', "tests/test_progress.py -k which_process"),
        ('self.waiting[1:] = [value]', 'self.waiting = [value]', "tests/test_progress.py -k waits"),
        ('self.due = now + self.of._every\n            self._print_step()', 'self._print_step()', "tests/test_progress.py -k line"),
    ),
    *plants("jaxpar/_metrics/chart.py",
        ('panel.remove()', 'pass', "tests/test_metrics.py -k no_panel"),
        ('{"svg.hashsalt": "jaxpar"}', '{}', "tests/test_metrics.py -k made_again"),
    ),
    *plants("jaxpar/_stamp.py",
        ('None if epoch is None else int(epoch)', 'None', "tests/test_stamp.py -k makes_a_file_again"),
        ('SECRET.sub(r"\\1=...", ', '(', "tests/test_stamp.py -k command"),
        ('if name in sys.modules', 'if True', "tests/test_stamp.py -k versions"),
    ),
]
