"""The reader of HLO, and for each of its checks a program with the fault that it must find."""

import functools

import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxpar

ALIASES = "{ {0}: (0, {}, may-alias), {1}: (2, {}, must-alias) }"
TEXT = (
    f"HloModule jit_f, is_scheduled=true, input_output_alias={ALIASES}"
    + """

%body (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %sum.1 = f32[2]{0} all-reduce(%p), to_apply=%add, metadata={op_name="body=%nothing"}
}

%product (a: f32[2,2]) -> f32[2,2] {
  %a = f32[2,2]{1,0} parameter(0)
  ROOT %dot.1 = f32[2,2]{1,0} dot(%a, %a)
}

ENTRY %main (x: f32[2], y: s32[]) -> f32[2] {
  %x = f32[2]{0} parameter(0), sharding={replicated}
  %start = ((f32[2]{0}), (f32[2]{0})) all-reduce-start(%x), to_apply=%add
  %fused = f32[2,2]{1,0} fusion(%x), kind=kCustom, calls=%product
  %done = f32[2]{0} all-reduce-done(%start)
  %call = (f32[4,2]{1,0}, /*index=1*/s8[0]{0}) custom-call(%fused), custom_call_target="__cublas$gemm"
  %choice = f32[2]{0} conditional(%y, %x, %x), branch_computations={%body, %other}
  ROOT %host = bf16[3]{0:S(5)} copy(%done)
}
"""
)


def test_a_program_is_read():
    program = hlo.read(TEXT)
    assert program.entry == "main"
    assert set(program.computations) == {"body", "product", "main"}
    assert (program.aliases, program.size) == (2, 11)
    assert program.collectives == [("all-reduce", 8), ("all-reduce", 8)]
    assert program.schedule == ["all-reduce-start", "product", "all-reduce-done", "product"]
    by_name = {each.name: each for each in program.instructions}
    assert by_name["call"].shape == "(f32[4,2]{1,0}, /*index=1*/s8[0]{0})"
    assert [by_name[name].nbytes for name in ("call", "host", "choice")] == [32, 6, 8]
    assert by_name["choice"].called() == ["body", "other"]


def test_what_is_no_schedule_is_refused():
    with pytest.raises(ValueError, match="no scheduled HLO"):
        hlo.read("HloModule jit_f\n")


def sharded(body, *, donate=False, rows=8):
    """The program of a function of each device's [1, 4] rows on two H100s."""
    mesh = Mesh(np.array(jaxpar.topology("h100", devices=2)), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("i")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    x = jax.ShapeDtypeStruct((2, rows), jnp.float32, sharding=NamedSharding(mesh, spec))
    run = jax.jit(mapped, donate_argnums=(0,) if donate else ())
    return hlo.read(run.lower(x).compile().as_text())


def summed(x):
    return x + jax.lax.psum(x, "i")


def summed_in_a_branch(x):
    return jax.lax.cond(jax.lax.axis_index("i") == 0, summed, lambda x: x, x)


def summed_in_a_loop_in_a_branch(x):
    return jax.lax.cond(
        x.sum() > 0, lambda x: jax.lax.fori_loop(0, 3, lambda _, x: summed(jnp.sin(x)), x), lambda x: x, x
    )


def gathered(x):
    return jax.lax.all_gather(x, "i").sum(0) * x


def by_way_of_the_host(x):
    return jax.device_put(jnp.sin(x), jax.memory.Space.Host)


SOUND = functools.partial(sharded, summed, donate=True)
CHECKS = {
    "collectives": lambda program: hlo.check_collectives(program, ("all-reduce", 32)),
    "sums": hlo.check_only_sums,
    "branches": hlo.check_no_collective_in_branches,
    "host": hlo.check_stays_on_device,
    "donates": lambda program: hlo.check_donates(program, 1),
    "schedule": lambda program: hlo.check_same_schedule(program, SOUND()),
}
FAULTS = [
    ("collectives", sharded, lambda x: summed(summed(x)), {}),
    ("collectives", sharded, summed, {"rows": 9}),
    ("sums", sharded, gathered, {}),
    ("branches", sharded, summed_in_a_branch, {}),
    ("branches", sharded, summed_in_a_loop_in_a_branch, {}),
    ("host", sharded, by_way_of_the_host, {}),
    ("donates", sharded, summed, {}),
    ("schedule", sharded, lambda x: summed(summed(x)), {}),
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_sound_program_passes(check):
    CHECKS[check](SOUND())


@pytest.mark.parametrize(("check", "make", "body", "options"), FAULTS)
def test_a_planted_fault_is_found(check, make, body, options):
    with pytest.raises(AssertionError):
        CHECKS[check](make(body, **options))


@pytest.mark.parametrize(
    "line",  # JAX lowers no callback for GPUs that are not there
    [
        '%a = (f32[2]{0}) custom-call(%x), custom_call_target="xla_ffi_python_gpu_callback"',
        '%a = f32[2]{0} custom-call(%x), custom_call_target="MoveToHost"',
        "%a = (f32[2]{0}, u32[], token[]) send(%x), channel_id=2, is_host_transfer=true",
        "%a = token[] recv-done(%x), channel_id=2",
        "%a = ((f32[2]{0}), token[]) infeed(%x)",
        "%a = token[] outfeed(%x)",
    ],
)
def test_a_planted_line_is_found(line):
    hlo.check_stays_on_device(hlo.read(planted("")))
    with pytest.raises(AssertionError, match="host"):
        hlo.check_stays_on_device(hlo.read(planted(line)))


def planted(line):
    return TEXT.replace("  ROOT %host = bf16[3]{0:S(5)} copy(%done)", f"  {line}")


@pytest.mark.parametrize(
    "schedule",
    [
        ["product", "all-reduce-start", "all-reduce-done"],
        ["all-reduce-start", "all-reduce-done", "product", "all-reduce-start", "all-reduce-done"],
    ],
)
def test_a_sum_that_waits_for_nothing_is_found(schedule, monkeypatch):
    monkeypatch.setattr(hlo.Program, "schedule", schedule)
    with pytest.raises(AssertionError):
        hlo.check_overlaps(hlo.read(TEXT))
