from __future__ import annotations

import torch

from polyphony.analysis import member_views
from polyphony.data import Split
from polyphony.distill.perturb import Gaussian


def test_views_are_each_members_probabilities_on_both_versions(linear_ensemble, linear_student):
    teachers, student = linear_ensemble(3).float(), linear_student.float()
    images = torch.randint(
        100, 156, (4, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    split, step = Split(images, torch.zeros(4, dtype=torch.int64)), 10 / 255
    rng = torch.Generator().manual_seed(3)
    views = member_views(teachers, {"kd": student}, split, Gaussian(step), 4.0, rng)

    noise = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(3))
    moved = images / 255 + step * noise / noise.square().mean((1, 2, 3), keepdim=True).sqrt()
    for version, x in enumerate((images / 255, moved)):
        for j in range(3):
            for name, network in (("teachers", teachers.networks[j]), ("students.kd", student.member(j))):
                torch.testing.assert_close(views[name][version, j], network(x).softmax(-1).detach())
    assert torch.equal(views["images"], images)
    assert torch.equal(views["perturbed"], (255 * moved).round().to(torch.uint8))
    assert set(views) == {"images", "perturbed", "teachers", "students.kd"}
