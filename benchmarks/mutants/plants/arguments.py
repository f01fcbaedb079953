"""Mistakes in the checks of arguments."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/_arguments/checked.py",
        ('if isinstance(value, types.FunctionType) and not _is_checked(value):', 'if False:', "tests/test_hostile_calls.py -k signature"),
        ('for holder in (module, sys.modules[value.__module__]):', 'for holder in (module,):', "tests/test_hostile_calls.py -k signature"),
        ('if problem is None or (_is_raised_by_library(error) and not isinstance(error, KeyError)):', 'if problem is None:', "tests/test_lr_scheduler.py -k refused"),
        ('        if problem is not None:\n            raise problem\n', '', "tests/test_hostile_calls.py -k without_a_check"),
        ('if not is_own and not all(map(is_data, values.values())):', 'if False:', "tests/test_hostile_calls.py -k own_error"),
        ('if accepts is None or accepts(value) or value is self.parameters[name].default', 'if accepts is None or accepts(value)', "tests/test_hostile_calls.py -k annotation_is_held"),
        ('value.bit_length() > 64 and accepts(0)', 'value.bit_length() > 64', "tests/test_hostile_calls.py -k annotation_is_held"),
        ('if not are_named or not str(error)', 'if not str(error)', "tests/test_hostile_calls.py -k hostile_value"),
        ('(AttributeError, LookupError, NameError', '(AttributeError, NameError', "tests/test_hostile_calls.py -k pythons_own"),
        ('names |= inspect.unwrap(self.function).__globals__', 'pass', "tests/test_hostile_calls.py -k hostile_value"),
    ),
    *plants("jaxpar/_arguments/kinds.py",
        ('return value.bit_length() <= 64', 'return True', "tests/test_hostile_calls.py -k for_ever"),
        ('and len(value) == len(checks)', '', "tests/test_hostile_calls.py -k annotation_is_held"),
        ('return bool(value >= bound)', 'return bool(value > bound)', "tests/test_hostile_calls.py -k accepted"),
        ('type(value) in set(map(type, members))', 'True', "tests/test_hostile_calls.py -k annotation_is_held"),
        ('all(map(is_data, value))', 'True', "tests/test_hostile_calls.py -k annotation_is_held"),
        ('hasattr(type(value), "__index__") and _has_kind(value, "biu")', 'False', "tests/test_hostile_calls.py -k numbers_of_other"),
        ('return value is True or value is False or', 'return True or', "tests/test_hostile_calls.py -k hostile_value"),
        ('not (no_text and isinstance(value, str)) and ', '', "tests/test_hostile_calls.py -k annotation_is_held"),
        ('and not isinstance(value, (Mapping, type, bytes))', '', "tests/test_hostile_calls.py -k hostile_value"),
    ),
    *plants("jaxpar/_arguments/warn.py",
        ('stacklevel=level', 'stacklevel=2', "tests/test_hostile_calls.py -k line_of_the_caller"),
    ),
]
