"""These tests are about pretend devices, so a machine that has real ones must not offer them."""

import functools

import pytest
import torch


@pytest.fixture(autouse=True)
def no_real_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # torch.compile looks behind the cache of this one.
    monkeypatch.setattr(torch.backends.mps, "is_available", functools.cache(lambda: False))
    torch.manual_seed(0)
