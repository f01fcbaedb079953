"""Groups and objects where something is wrong: every rank that is there raises, with what and where.

What they do when nothing is wrong is compared with torch in test_torch_collectives.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from flax import nnx
from processes import ROOT, environment, outputs, ranks

import jaxpar
import jaxpar.distributed as dist
from jaxpar import errors
from jaxpar._training.distributed_base import _groups
from jaxpar._training.world import World
from jaxpar.distributed.group import Group

# ---------------------------------------------------------------------------------- in processes

WRONG = f"""
import sys, warnings
sys.path.insert(0, {str(ROOT / "tests")!r})
import numpy as np
import jax, jax.numpy as jnp
from flax import nnx
import jaxpar
import jaxpar.distributed as dist
from jaxpar.distributed import _text_transfer
from jaxpar.distributed.exchange import _client

dist.init_process_group(timeout=30)
r, W = dist.get_rank(), dist.get_world_size()
out = [None] * W


class Own:
    def __reduce__(self):
        return print, ("LOADED",)


def tell(what, call):
    try:
        print(f"{{what}}: {{call()}}", flush=True)
    except jaxpar.errors.JaxparError as error:
        print(f"{{what}}: {{type(error).__name__}}: {{error}}", flush=True)
    assert dist.all_gather_object(None, r) == [0, 1]  # the group goes on


tell("refused", lambda: dist.all_gather_object(out, {{"a": Own()}} if r else 1))
tell("one allows", lambda: dist.all_gather_object(out, Own(), allow_pickle=r == 1))
tell("another word", lambda: dist.all_gather_object(out, 1) if r else dist.gather_object(1, out))
tell("another src", lambda: dist.broadcast_object_list([1], src=r))
tell("another number", lambda: dist.broadcast_object_list([1] * (r + 1)))
tell("short list", lambda: dist.all_gather_object([None] * (1 + r), 1))
tell("long list", lambda: dist.all_gather_object([None, None, "stays"], r))
tell("no list on dst", lambda: dist.gather_object(1, None))
tell("a list elsewhere", lambda: dist.gather_object(1, out))
tell("no input", lambda: dist.scatter_object_list([None], None))
tell("short input", lambda: dist.scatter_object_list([None], [1, 2, 3]))
_text_transfer.LARGEST = 10_000
tell("too large", lambda: dist.all_gather_object(out, "x" * 20_000 * r))
_text_transfer.LARGEST = 2**26

everything = dist.all_gather_object(out, np.arange(300_000) + r)
assert [x[-1] for x in everything] == [299_999, 300_000]
dist.barrier()
print("keys:", [k for k, v in _client().key_value_dir_get("jaxpar/1/objects/") if "texts" in k])

tell("other groups", lambda: dist.new_group([r]))
tell("other timeouts", lambda: dist.new_group(timeout=10 + r))
group = dist.new_group([1, 0])
late = dist.new_group([1])
tell("other shapes", lambda: dist.all_gather(np.ones(2 + r)))
tell("uneven", lambda: [x.shape for x in dist.all_gather(np.ones((r, 2 - r)), group, uneven=True)])
tell("uneven axes", lambda: dist.all_gather(np.ones((1,) * (r + 1)), uneven=True))
tell("uneven dtypes", lambda: dist.all_gather(np.ones(r, ["f4", "f8"][r]), uneven=True))
keys = dist.all_gather(jax.random.split(jax.random.key(0), r + 1), uneven=True)
assert [k.shape for k in keys] == [(1,), (2,)]
assert (keys[1] == jax.random.split(jax.random.key(0), 2)).all()
tell("no rank of it", lambda: dist.broadcast(1, src=0, group=late) if r else None)

alone = dist.new_group([r], use_local_synchronization=True)
other = dist.new_group([1 - r], use_local_synchronization=True)
print("local:", dist.all_reduce(r, group=alone), other)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    dist.barrier(late)
    dist.monitored_barrier(late, timeout=5)
    results = [
        dist.all_reduce(7, group=late), dist.broadcast(7, 1, late), dist.all_gather(7, late),
        dist.all_gather_object(out, 7, late), dist.gather_object(7, None, 1, late) if not r else None,
    ]
print("outside:", [int(x) if isinstance(x, jax.Array) else x for x in results[:2]], len(seen))
dist.destroy_process_group(late)
dist.destroy_process_group(group)
tell("destroyed", lambda: dist.all_reduce(1, group=group))

pairs = [dist.new_group([0]), dist.new_group([1])]
linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
tell("no member", lambda: jaxpar.DistributedDataParallel(linear, process_group=pairs[1 - r]))


def normalised(mine):
    return nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), jaxpar.nn.SyncBatchNorm(2, process_group=mine))


both = dist.new_group()
tell("other members", lambda: jaxpar.DistributedDataParallel(normalised([pairs[0], both][r])))
tell("only some have one", lambda: jaxpar.DistributedDataParallel(normalised([both, None][r])))
tell("strangers", lambda: jaxpar.DistributedDataParallel(normalised(both), process_group=pairs[r]))
net = jaxpar.DistributedDataParallel(normalised(pairs[r]), process_group=pairs[r])  # a model for each rank
x = np.arange(6.0).reshape(3, 2) * (r + 1)
loss, gradients = net.value_and_grad(lambda net, x: net(x).var())(x)
first, second = net.module.layers
print("own model:", net.replicas, np.allclose(second.mean[...], 0.1 * first(x).mean(0)))
tell("replicas", lambda: jaxpar.check_replicas({{"x": np.arange(3) + r}}, pairs[r]))
tell("other replicas", lambda: jaxpar.check_replicas({{"x": np.arange(3) + r}}, both))
print("END")
"""
SAID = {
    "refused": "LeafError: all_gather_object(), on rank 1: obj['a'] is a __main__.Own, which only pickle can",
    "one allows": "DivergenceError: a call with objects: the ranks differ in the call: rank 0 has "
    "all_gather_object(), rank 1 has all_gather_object(allow_pickle=True).",
    "another word": "DivergenceError: a call with objects: the ranks differ in the call: rank 0 has "
    "gather_object(dst=0), rank 1 has all_gather_object().",
    "another src": "rank 0 has broadcast_object_list(src=0, objects=1), rank 1 has broadcast_object_list(sr",
    "another number": "rank 0 has broadcast_object_list(src=0, objects=1), rank 1 has "
    "broadcast_object_list(src=0, objects=2).",
    "short list": "GroupError: all_gather_object(), on rank 0: object_list has 1 entries for 2 ranks",
    "long list": "[0, 1, 'stays']",
    "no list on dst": "on rank 0: Argument ``gather_list`` must be specified on destination rank.",
    "a list elsewhere": "on rank 1: Argument ``gather_list`` must NOT be specified on non-destination ranks.",
    "no input": "on rank 0: source rank must provide non-None scatter_object_input_list",
    "short input": "on rank 0: scatter_object_input_list has 3 entries for 2 ranks; it needs one for each.",
    "too large": "LeafError: all_gather_object(), on rank 1: 0 MiB of text are too much",
    "keys": "[]",
    "other groups": "differ in its ranks: rank 0 has [0], rank 1 has [1]. Ranks 0, 1 are at <string>:50. "
    "All ranks make all groups",
    "other timeouts": "differ in its timeout: rank 0 has 10.0, rank 1 has 11.0.",
    "other shapes": "rank 0 has float64[2], rank 1 has float64[3]. Ranks 0, 1 are at <string>:54. "
    "If only shapes are to differ, write all_gather(x, uneven=True)",
    "uneven": "[(0, 2), (1, 1)]",
    "uneven axes": "rank 0 has float64[1], rank 1 has float64[1, 1].",
    "uneven dtypes": "rank 0 has float32[1], rank 1 has float64[1].",
    "destroyed": "GroupError: all_reduce: group ",
    "no member": "GroupError: DistributedDataParallel: this process is not in process_group.",
    "other members": "has ranks [0, 1] on rank 1, and [0] on rank 0.",
    "only some have one": "module.layers.1 has one on other ranks, and none on rank 1.",
    "strangers": "has ranks [1], which do not train this module; ranks [0] do.",
    "own model": "1 True",
    "replicas": "None",
    "other replicas": "x'] (int64[3]) is not the same on rank 0 and rank 1: element [0] is 0 on rank 0 and 1",
}
DIFFERENT = {
    "strangers": ("has ranks [1], which", "has ranks [0], which"),
    "no rank of it": ("None", "GroupError: broadcast: src=0 is not a rank of this group, which has [1]."),
    "local": ("0 None", "1 None"),
    "outside": ("[7, 7] 7", "[7, 7] 0"),
}


@pytest.mark.slow
def test_what_is_wrong_is_said_on_all_ranks():
    said = outputs(ranks(2, WRONG, timeout=200))
    assert "LOADED" not in "".join(said)
    for rank, text in enumerate(said):
        lines = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and "Gloo" not in line)
        wanted = SAID | {what: of_rank[rank] for what, of_rank in DIFFERENT.items()}
        missing = {what: lines.get(what) for what, part in wanted.items() if part not in lines.get(what, "")}
        assert not missing
        assert "END" in text


# ------------------------------------------------------------------------------- a world of one


@pytest.fixture
def alone(monkeypatch):
    for name in environment(0, 1, 1):
        if name.startswith(("RANK", "WORLD", "LOCAL", "MASTER")):
            monkeypatch.delenv(name, raising=False)
    dist.init_process_group()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_alone_every_word_gives_what_it_got(alone):
    x = {"a": np.arange(4.0), "b": [np.int8(4)]}
    group = dist.new_group()
    for g in (None, group, dist.GroupMember.WORLD, dist.group.WORLD):
        np.testing.assert_array_equal(dist.reduce(x, 0, group=g)["a"], x["a"])
        np.testing.assert_array_equal(dist.gather(x, group=g)[0]["a"], x["a"])
        np.testing.assert_array_equal(dist.scatter(x, [x], group=g)["a"], x["a"])
        np.testing.assert_array_equal(dist.all_gather(x, g, uneven=True)[0]["a"], x["a"])
        np.testing.assert_array_equal(dist.all_gather_into_tensor(x, g)["a"], x["a"])
        np.testing.assert_array_equal(dist.reduce_scatter_tensor(x["a"], group=g), x["a"])
        given: list = [None]
        assert dist.all_gather_object(given, (1, x), g) is given
        assert given[0][0] == 1
        assert dist.gather_object("a", [None], group=g) == ["a"]
        assert dist.broadcast_object_list(["a", 2], group=g) == ["a", 2]
        assert dist.scatter_object_list(given, ["a"], group=g) == given[0] == "a"
        assert (dist.get_rank(g), dist.get_world_size(g), dist.get_process_group_ranks(g)) == (0, 1, [0])
    assert (dist.get_backend(), dist.is_available()) == ("gloo", True)


def test_an_end_forgets_the_groups(alone):
    group = dist.new_group()
    dist.destroy_process_group()
    assert dist.GroupMember.WORLD is None
    dist.init_process_group()
    with pytest.raises(errors.GroupError, match="is not registered"):
        dist.all_reduce(1.0, group=group)


OUTSIDE = dist.GroupMember.NON_GROUP_MEMBER
BAD = {
    "twice": (
        lambda: dist.new_group([0, 0]),
        r"must not contain duplicate entries, got \[0, 0\](\n|$)",
    ),
    "no such rank": (lambda: dist.new_group([1]), r"^Rank 1 is out of range\. Valid ranks are 0 to 0"),
    "no number": (lambda: dist.new_group(["0"], sort_ranks=False), "ranks are ints, not '0'"),
    "nobody": (lambda: dist.new_group([]), "a group needs a rank"),
    "no time": (lambda: dist.new_group(timeout=0), "timeout must be positive"),
    "another backend": (lambda: dist.new_group(backend="mpi"), "backend='mpi' is unknown"),
    "no group": (lambda: dist.all_reduce(1.0, group=[0]), r"group \[0\] is not registered"),
    "both": (lambda: dist.reduce(1.0, 0, group_dst=0), "can't specify both dst and group_dst"),
    "none": (lambda: dist.reduce(1.0), "must specify dst or group_dst"),
    "no such src": (lambda: dist.broadcast(1.0, 3), "src=3 is not a rank of this group"),
    "no such group_src": (lambda: dist.broadcast(1.0, group_src=3), "Group rank 3 is not part of group"),
    "no such global rank": (lambda: dist.get_group_rank(dist.new_group(), 3), "Global rank 3 is not part of"),
    "its ranks": (lambda: dist.get_process_group_ranks(OUTSIDE), "is not registered"),
    "its backend": (lambda: dist.get_backend(OUTSIDE), "Invalid process group specified"),
    "an empty list": (lambda: dist.scatter_object_list([], [1]), "a list of size at least 1"),
    "no list to scatter": (lambda: dist.scatter(1.0), "``scatter_list`` must be specified on source rank"),
    "a long list to scatter": (lambda: dist.scatter(1.0, [1.0] * 2), "a list of 2 for 1 ranks"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments_are_value_errors(alone, what):
    call, message = BAD[what]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert isinstance(caught.value, errors.GroupError)


def test_bits_of_floats(alone):
    with pytest.raises(errors.LeafError, match=r"x is float64\[\]: only integers and booleans have bits"):
        dist.all_reduce(1.0, dist.ReduceOp.BAND)


def test_without_a_default_group():
    for call in (
        dist.new_group,
        dist.get_process_group_ranks,
        dist.get_backend,
        lambda: dist.get_rank(OUTSIDE),
        lambda: dist.all_gather_object([None], 1),
        lambda: dist.all_reduce(1.0, group=OUTSIDE),
    ):
        with pytest.raises(ValueError, match=r"^Default process group has not been initialized"):
            call()


def test_what_launchers_say(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert (dist.get_node_local_rank(3), dist.is_torchelastic_launched()) == (3, False)
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
        dist.get_node_local_rank()
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert (dist.get_node_local_rank(3), dist.is_torchelastic_launched()) == (5, True)


# --------------------------------------------------------------------- groups of statistics


def world(ranks_: tuple[int, ...]) -> World:
    devices = tuple(jaxpar.devices())[: 2 * len(ranks_)]
    group = Group(0, len(ranks_), "", 1, 1.0, 0, ranks_, "group 1")
    return World(jaxpar.Placement(devices[:2]), jaxpar.Placement(devices), 0, len(ranks_), group)


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ([[4, 7], [4, 7], [9]], (0, 0, 0, 0, 1, 1)),
        ([[4, 9], [], [4, 9]], (0, 0, 1, 1, 0, 0)),  # a rank outside of its group is alone
        ([[4], [7], [9]], (0, 0, 1, 1, 2, 2)),
    ],
)
def test_every_replica_has_the_number_of_its_group(said, numbers):
    found = _groups("n", [{"n": ranks_} for ranks_ in said], world((4, 7, 9)))
    assert found.numbers == numbers


def test_one_group_of_all_is_all_replicas():
    assert _groups("n", [{"n": [9, 4, 7]}] * 3, world((4, 7, 9))) is None


def test_a_layer_whose_group_was_not_settled(alone):
    net = nnx.Sequential(jaxpar.nn.SyncBatchNorm(2, process_group=dist.new_group()))
    np.testing.assert_allclose(np.asarray(net(np.eye(2))).sum(), 0, atol=1e-6)  # on one device: BatchNorm
    with pytest.raises(ValueError, match="is settled when DistributedDataParallel wraps"):
        jaxpar.DataParallel(net, [0, 1])(np.ones((4, 2)))


def test_groups_of_another_number_of_replicas(alone):
    layer = jaxpar.nn.SyncBatchNorm(2)
    layer.process_group = jaxpar._typing.ReplicaGroups((0, 0, 1, 1))
    rows = np.random.RandomState(0).randn(8, 2)
    found = jaxpar.DataParallel(layer, [0, 1, 2, 3])(rows)
    want = [np.asarray(jaxpar.nn.BatchNorm(2)(half)) for half in (rows[:4], rows[4:])]
    np.testing.assert_allclose(found, np.concatenate(want), rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="which of the 2 replicas"):
        jaxpar.DataParallel(layer, [0, 1])(rows)
