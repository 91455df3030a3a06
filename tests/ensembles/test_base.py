from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyphony._util.text import SettingError
from polyphony.ensembles import BatchEnsemble, DeepEnsemble, Single, evaluating, member_rows
from polyphony.ensembles.base import share_rows
from polyphony.nn import adapt, resnet


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(members=st.integers(1, 4), rows=st.integers(1, 9), size=st.integers(1, 6), shared=st.booleans())
@settings(max_examples=60, derandomize=True)
def test_every_member_sees_the_rows_assigned_to_it(members, rows, size, shared):
    batch = torch.rand(size, 2, 3, generator=seeded())
    indices = torch.randint(size, (1 if shared else members, rows), generator=seeded(1)).expand(members, rows)
    selected = member_rows(batch, indices)
    for j in range(members):
        for row in range(rows):
            assert torch.equal(selected[j, row], batch[indices[j, row]])


def test_rows_that_all_members_share_are_not_copied_for_each():
    batch = torch.rand(5, 2, 3, 3, generator=seeded())
    shared = member_rows(batch, BatchEnsemble(resnet(8, 3), 4).assign(5, seeded()))
    assert share_rows(shared)
    assert shared.untyped_storage().nbytes() == batch.untyped_storage().nbytes()
    assert torch.equal(shared, batch[None].repeat(4, 1, 1, 1, 1))
    assert not share_rows(shared.clone())
    assert share_rows(member_rows(batch, Single(resnet(8, 3)).assign(5, seeded())))


def test_evaluating_gives_every_part_its_mode_back_even_after_an_error():
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    network[0].eval()
    modes: list[bool] = []

    def fail() -> None:
        with evaluating(network):
            modes.extend(part.training for part in network.modules())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert modes == [False, False, False]
    assert [part.training for part in network.modules()] == [True, False, True]


class WithDict(nn.Module):
    """Classifies as networks of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.classify(x.flatten(1))}


def test_a_network_that_returns_a_dict_is_told_of_adapt():
    images = torch.rand(4, 3, 2, 2)
    with pytest.raises(SettingError, match=r"returns a dict, not logits: wrap it in adapt\(network\)"):
        DeepEnsemble([WithDict()]).ask_all(images)
    assert DeepEnsemble([adapt(WithDict())]).ask_all(images).shape == (1, 4, 3)
