"""The judge proves jaxpar's own steps for H100s, and finds one without its reduction."""

from __future__ import annotations

import pytest
from steps import WRAPPERS, shapes, step_of

import jaxpar
from jaxpar import Precision, comm_hooks
from jaxpar.errors import ProgramError

OPTIONS = {
    "plain": {},
    "ignoring": {"on_nonfinite": "ignore"},
    "skipping": {"on_nonfinite": "skip"},
    "accumulating": {"accumulate": 2},
    "bfloat16": {"precision": Precision("bfloat16")},
    "float16": {"precision": Precision("float16")},
    "sync_batch_norm": {"net": "sync_batch_norm"},
    "gpt": {"net": "gpt"},
    "on_1024": {"hosts": 128},
}
HOOKS = {"bf16": comm_hooks.bf16_compress, "fp16": comm_hooks.fp16_compress}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_step_is_proven(kind, name):
    options = OPTIONS[name]
    report = jaxpar.program(
        step_of(kind, **options), *shapes(options.get("net", "batch_norm"), 64 * options.get("hosts", 1))
    )
    assert report.verdict == "right", report
    assert not report.findings, report
    assert report.shares == report.devices


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_compresses_is_proven_and_its_type_is_noted(name):
    report = jaxpar.program(step_of("ddp", hook=HOOKS[name]), *shapes("batch_norm", 64))
    assert report.verdict == "right", report
    assert {finding.kind for finding in report.findings} <= {"half"}


def test_a_hook_that_does_not_reduce_is_found():
    report = jaxpar.program(step_of("ddp", hook=comm_hooks.noop), *shapes("batch_norm", 64))
    assert {finding.kind for finding in report.findings} >= {"missing"}, report
    with pytest.raises(ProgramError, match="missing"):
        report.check()
