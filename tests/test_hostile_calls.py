"""Every public function and class refuses nonsense by name: of a valid call one argument is replaced.

The outcome is an error of a documented class, whose text names the function and the argument, or a result
where the value is one that the argument's annotation allows.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from valid_calls import public, valid_call

import jaxpar
from jaxpar._arguments import Least
from jaxpar._arguments.checked import checked

# Kinds of arguments that may take a value; every argument of these kinds takes it or refuses it by name.
MANY = {"Sequence", "any"}
HOSTILE: dict[str, tuple[Any, set[str]]] = {
    "an object": (object(), {"any"}),
    "None": (None, {"None", "any"}),
    "NUL": ("\0", {"str", "any"}),
    "bytes": (b"x", {"any"}),
    "NaN": (float("nan"), {"Array", "any"}),
    "infinity": (float("inf"), {"Array", "any"}),
    "minus infinity": (float("-inf"), {"Array", "any"}),
    "a fraction": (2.5, {"float", "Array", "any"}),
    "a negative number": (-1, {"Array", "any"}),
    "a huge number": (10**400, {"int", "float", "Array", "any"}),
    "no elements": ([], MANY),
    "an empty tuple": ((), MANY),
    "an empty dict": ({}, {"dict", "Sequence", "any"}),
    "a set": ({"x"}, {"any", "Sequence"}),
    "a function": (lambda *args, **kwargs: None, {"function", "any"}),
    "text in an array": (np.array(["a", "b"]), {"any", "Sequence"}),
    "an empty array": (jnp.ones(0), {"Array", "Sequence", "any"}),
    "many axes": (jnp.ones((1, 2, 1, 2, 1, 3, 1)), {"Array", "Sequence", "any"}),
}
ODD_NUMBERS = ("NaN", "infinity", "minus infinity", "a negative number")
INFINITE = ("infinity", "minus infinity")
# The arguments, or functions' arguments, for which some of ODD_NUMBERS mean something.
MEANINGS: dict[str, tuple[tuple[str, ...], str]] = {
    "pad.value": (ODD_NUMBERS, "what is filled in"),
    "ConstantPad.value": (ODD_NUMBERS, "what is filled in"),
    **dict.fromkeys(("max_norm", "clip_value"), (("infinity",), "nothing is clipped")),
    **dict.fromkeys(("norm_type", "p"), ((*INFINITE, "a negative number"), "the order of a norm")),
    **dict.fromkeys(
        ("min_val", "max_val", "threshold", "value"), ((*INFINITE, "a negative number"), "any x is allowed")
    ),
    "adafactor.d": (("infinity",), "no update is scaled down"),
    "asgd.t0": (("infinity",), "the average never begins"),
    "loc": ((*INFINITE, "a negative number"), "torch.distributions has it"),
    "Normal.scale": (("infinity",), "torch.distributions has it"),
    **{
        name: (("a negative number",), meaning)
        for meaning, names in {
            "counted from the end": "dim axis start_dim end_dim padding_idx axes",
            "an identifier": "seed generator random_seed source epoch fallback_rank ignore_index",
            "none, as in torch": "last_epoch output_device target_device",
            "a slope, a weight or a power": "alpha beta k init lower negative_slope dampening beta2_decay "
            "divisor_override correction scaled_dot_product_attention.scale",
            "torch shrinks nothing": "hardshrink.lambd Hardshrink.lambd Softshrink.lambd",
            "a distance": "margin fill",
            "cuts off, as in torch": "padding",
            "worse is good enough": "ReduceLROnPlateau.threshold reduce_lr_on_plateau.threshold",
            "never stops before max_iter": "tolerance_grad tolerance_change",
            "unused beside total_steps": "epochs steps_per_epoch",
            "refused when it is called, as in torch": "Fold.output_size sizes.kernel_size",
        }.items()
        for name in names.split()
    },
}
# Words of annotations, and the kinds of values that they take; any other word is a class.
KINDS = {
    "bool": "bool",
    "int": "int",
    "SupportsIndex": "int",
    "float": "float int",
    "str": "str",
    "PathLike": "str",
    "None": "None",
    "Array": "Array",
    "ndarray": "Array",
    "ArrayLike": "Array int Sequence",
    "Ints": "int Sequence",
    "Sizes": "int Sequence None",
    "Count": "int",
    "Positive": "int",
    "Size": "int",
    "Dimensions": "int Sequence",
    "Floating": "Array",
    "Finite": "Array",
    "SupportsFloat": "float int",
    "Filter": "str function Sequence None",
    "NonNegative": "float int",
    "Limit": "float int",
    "Extended": "float int",
    "AnyFloat": "float int",
    "Scale": "float int",
    "StartRate": "float int Array",
    "Scalar": "float int Array",
    "ScalarOrSchedule": "float int Array function",
    "PerGroup": "float int Sequence",
    "DeviceLike": "int str",
    "AxisName": "str Sequence None",
    "Axis": "str Sequence None",
    "Axes": "int Sequence None",
    "Key": "Array",
    "Padding": "int Sequence",
    "Lengths": "Array Sequence None",
    "State": "Array Sequence None",
    "Callable": "function",
    "Module": "function",
    "Rate": "function",
    "Factor": "function",
    "Advance": "function",
    "Activation": "function",
    "Fill": "function",
    "Visit": "function",
    "Sequence": "Sequence",
    "list": "Sequence",
    "tuple": "Sequence",
    "Iterable": "Sequence dict str",
    "Sized": "any",
    "Mapping": "dict",
    "dict": "dict",
    "Variables": "dict",
    "TorchWeights": "dict str",
    "Progress": "function",
    "JaxModel": "function",
}
OPEN = {
    "FlaxModule",  # or anything that can be called
    "Nets",
    "Optimizers",
    "Inputs",
    "Outputs",
    "Arrays",
    "Entries",
    "Target",
    "Any",
    "PyTree",
    "object",
    "Sample",
    "Image",
    "M",
    "T",
    "Dataset",
    "",
}
# How the texts of jaxpar.parity and of torch spell an argument.
SPELLED = {"model": {"module"}, "torch_module": {"torch", "path"}, "flax_module": {"Flax"}, "like": {"torch"}}
CLEAR = (TypeError, ValueError, RuntimeError, OSError)
TORCHS = (IndexError, AssertionError, NotImplementedError)


def kinds_of(annotation: Any) -> set[str]:
    """What an argument takes: the words of its annotation that are not inside of brackets."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if annotation is inspect.Parameter.empty:
        return {"any"}
    text = re.sub(r"Annotated\[(.*), \w+(\(.*\))?\]", r"\1", text.replace("nnx.Module", "NNX"))
    if "Literal" in text:
        text = text.replace(re.search(r"Literal\[.*?\]", text).group(), "str")
    inside = {"str"} if re.search(r"(Sequence|Iterable)\[(Any|Sample|PyTree)\]", text) else set()
    while "[" in text and (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = shorter
    words = [word.rpartition(".")[2] for word in re.findall(r"[\w.]+", text)]
    if OPEN & set(words):
        return {"any"}
    return inside | {kind for word in words for kind in KINDS.get(word, "").split()}


def meaning(function: str, argument: inspect.Parameter, hostile: str) -> str:
    """Return the row of MEANINGS that has the number, or an empty text."""
    name = re.sub(r"\dd$", "", function)
    keys = (f"{name}.{argument.name}", argument.name)
    return next((key for key in keys if hostile in MEANINGS.get(key, [()])[0]), "")


USED: set[tuple[str, str]] = set()


def arguments(function: Any) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.kind in (1, 3)]


def outcome(name: str, function: Callable[..., Any], argument: inspect.Parameter, hostile: str) -> str:
    """Return "" or what is wrong with the answer to a hostile value."""
    return verdict(name.rpartition(".")[2], function, *valid_call(name, function), argument, hostile)


def verdict(
    short: str,
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    argument: inspect.Parameter,
    hostile: str,
) -> str:
    value, takers = HOSTILE[hostile]
    kinds = kinds_of(argument.annotation) | ({"None"} if argument.default is None else set())
    if hostile in ODD_NUMBERS and ("float" in kinds or kinds & {"int", "any", "Array"} == {"int"}):
        kinds = kinds - {"Array"} | ({"any"} if meaning(short, argument, hostile) else set())
    if short in SLOW and (takers & kinds or hostile in ODD_NUMBERS):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **{**kwargs, argument.name: value})
    except (*CLEAR, *TORCHS) as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        words = set(re.findall(r"\w+", text))
        if type(error) in TORCHS and "Dimension out of range" not in text and short not in text:
            return f"raises {error!r}"
        # An open argument holds the user's data, a function is the user's, and a singular names a member.
        if (
            takers & kinds & {"any", "function"}
            or "Any" in str(argument.annotation)
            or {argument.name, argument.name.removesuffix("s"), *SPELLED.get(argument.name, ())} & words
        ):
            return ""
        return f"does not name the argument in {text!r}"
    except Exception as error:
        # Errors of Linen name the module and the collection, and their page.
        return "" if type(error).__module__ in ("jaxpar.errors", "flax.errors") else f"raises {error!r}"
    USED.add((meaning(short, argument, hostile), hostile))
    return "" if takers & kinds else "accepts it"


# Here an allowed value trains for seconds, waits for other ranks, or sets up the process.
SLOW = {
    "against",
    "compare",
    "record",
    "port",
    "check",
    "assert_parity",
    "init_process_group",
    "virtual_devices",
}
PUBLIC = public()
CASES = [(name, argument) for name, function in PUBLIC.items() for argument in arguments(function)]


def assert_refused(name: str, argument: inspect.Parameter, hostile: str) -> None:
    wrong = outcome(name, PUBLIC[name], argument, hostile)
    assert not wrong, f"{name}({argument.name}={hostile}) {wrong}"


DRAWN = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.full
@given(st.sampled_from(CASES), st.sampled_from(sorted(HOSTILE)))
@settings(DRAWN, max_examples=300)
def test_a_hostile_value_is_refused_by_name(case, hostile):
    assert_refused(*case, hostile)


@pytest.mark.long
@given(st.sampled_from(CASES), st.sampled_from(sorted(HOSTILE)))
@settings(DRAWN, max_examples=600)
def test_more_hostile_values_are_refused_by_name(case, hostile):
    assert_refused(*case, hostile)


@pytest.mark.full
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_an_odd_number_without_a_meaning_is_refused(every):
    numbers = [(n, a) for n, a in CASES if kinds_of(a.annotation) & {"int", "float"}][::every]
    wrong = [
        f"{name}({argument.name}={hostile}) {problem}"
        for name, argument in numbers
        for hostile in ODD_NUMBERS
        if (problem := outcome(name, PUBLIC[name], argument, hostile))
    ]
    assert not wrong
    assert every > 1 or {(key, hostile) for key, row in MEANINGS.items() for hostile in row[0]} <= USED


def element(n: int) -> int:
    """A function without a check: Python's own errors, and text where a number is meant."""
    return [1, 2, 3, 4, 5, 6, 7][n]


def twice(n: int) -> int:
    return n * 2


PLANTED = [
    (element, "None", "does not name the argument"),
    (element, "a huge number", "raises IndexError"),
    (twice, "NUL", "accepts it"),
    (twice, "NaN", "accepts it"),
]


@pytest.mark.parametrize(("function", "hostile", "problem"), PLANTED)
def test_a_function_without_a_check_is_found(function, hostile, problem):
    (argument,) = arguments(function)
    assert problem in outcome("planted", function, argument, hostile)
    assert outcome(function.__name__, checked(function), argument, hostile) == ""


def test_bounds_and_paths_go_before_the_call():
    called = []

    def keep(n: Annotated[float, Least(1, RuntimeError)] = 1.0, path: str | Path = "run") -> None:
        called.append(n)

    for n in (0.5, float("nan"), float("inf"), np.float32(0)):
        with pytest.raises(RuntimeError, match=r"keep: n is .*; it must be finite and 1 or more\."):
            checked(keep)(n)
    with pytest.raises(ValueError, match=r"keep: path is ''; it must be a path"):
        checked(keep)(path="")
    assert not called


def test_what_would_take_for_ever_is_refused_before_the_call():
    called = []

    def keep(n: int) -> None:
        called.append(n)

    with pytest.raises(ValueError, match=r"keep: n is 1000.*; it must be a number of 64 bits"):
        checked(keep)(10**400)
    assert not called


def a_pair(n: tuple[int, int]) -> None: ...
def from_one(n: Annotated[int, Least(1)]) -> None: ...
def one_word(n: Literal["mean"]) -> None: ...
def text(n: str) -> None: ...
def names(n: tuple[str, ...]) -> None: ...
def by_default(automatic: int = "automatic", n: int = 0) -> None: ...
def rest(*batch: int, m: int = 0, n: int = 0) -> None: ...
def first(n: list) -> None:
    n[0]()


def fails() -> None:
    raise KeyError("the user's")


ANNOTATIONS = {
    "three of two": (a_pair, [(1, 2, 3)], TypeError, "a_pair: n is"),
    "below the bound": (from_one, [0], ValueError, "from_one: n is 0; it must be 1 or more"),
    "a number for a word": (one_word, [3], TypeError, "one_word: n is 3"),
    "a huge number for a text": (text, [10**400], TypeError, "text: n is"),
    "a text for its letters": (names, ["fc.weight"], TypeError, "names: n is 'fc.weight'"),
    "a default of another type": (by_default, ["automatic", "x"], TypeError, "by_default: n is 'x'"),
    "a name after others": (lambda: checked(rest)(1, "x", "y", n=2.5), (), TypeError, "rest: n is 2.5"),
    "the user's function in a list": (first, [[fails]], KeyError, "the user's"),
}


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_an_annotation_is_held(case):
    function, arguments_, kind, text_ = ANNOTATIONS[case]
    with pytest.raises(kind, match=text_) as caught:
        checked(function)(*arguments_)
    assert type(caught.value) is kind


def test_the_bound_itself_is_accepted():
    checked(from_one)(1)


def test_an_error_of_pythons_own_names_the_call():
    with pytest.raises(ValueError, match="element was called with n=9: IndexError"):
        checked(element)(9)


def test_checked_functions_keep_signature_and_identity():
    functions = [value for value in PUBLIC.values() if inspect.isfunction(value)]
    assert len(functions) > 200
    for function in functions:
        assert inspect.signature(function) == inspect.signature(function.__wrapped__)
        assert pickle.loads(pickle.dumps(function)) is function


def test_an_own_error_goes_first_and_the_users_unchanged():
    with pytest.raises(ValueError, match=r"T_0, but got -1\n") as caught:
        jaxpar.optim.lr_scheduler.cosine_annealing_warm_restarts(0.1, -1)
    assert caught.value.__notes__ == ["cosine_annealing_warm_restarts was called with lr=0.1, T_0=-1"]

    def fail(*_):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as caught:
        jaxpar.data_parallel(fail, jnp.ones((4, 2)), [0, 1])
    assert not any("data_parallel was called" in note for note in getattr(caught.value, "__notes__", ()))


def test_warnings_name_the_line_of_the_caller():
    with pytest.warns(UserWarning, match="target size") as caught:
        jaxpar.nn.functional.mse_loss(jnp.ones(2), jnp.ones((2, 2)))
    assert caught[0].filename == __file__


NUMBERS = [3, True, np.int64(3), np.uint8(3), jnp.int32(3)]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_of_other_libraries_are_numbers(number):
    assert checked(twice)(number) == 2 * number
    assert jax.jit(checked(twice))(number) == 2 * number


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, "float16", np.dtype("float32"), float])
def test_types_of_numbers(dtype):
    assert jaxpar.nn.BatchNorm(2, dtype=dtype, param_dtype=dtype).scale.dtype == jnp.dtype(dtype)


def product(n: float, m: Annotated[float, Least(0)]) -> float:
    return n * m


def test_what_jax_traces_is_an_array():
    assert jax.jit(checked(product))(3.0, 0.5) == 1.5
    for wrap in (jax.jit, jax.grad, jax.vmap):
        wrap(lambda x: jaxpar.nn.functional.leaky_relu(x, 0.1).sum())(jnp.ones(2))


def test_the_import_system_still_works():
    importlib.invalidate_caches()
