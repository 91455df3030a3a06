"""Train four teachers on 200 digits, distil them into one network, and compare both on test images.

Takes about half a minute on one core: python examples/distil.py
"""

import torch

from polyphony import (
    ODS,
    Augmentation,
    BatchEnsemble,
    CrossEntropy,
    DeepEnsemble,
    Distill,
    Options,
    Plan,
    Single,
    fit,
    load,
    predict,
    resnet,
)


def rng(seed: int) -> torch.Generator:
    """A random generator."""
    return torch.Generator().manual_seed(seed)


def fresh_network(seed: int) -> torch.nn.Module:
    """A network for the digits. It normalises its inputs with the mean and std of the training images."""
    network = resnet(8, classes=10, channels=1, rng=rng(seed))
    network.normalize.set(*digits.train.statistics)
    return network


torch.set_num_threads(1)
digits = load("digits", Options(per_class=20, valid=400, test=1000))
plan = Plan(epochs=30, batch=50, augment=Augmentation(pad=0, flip=False))
networks = [fresh_network(seed) for seed in range(4)]
for seed, network in enumerate(networks):
    fit(Single(network), CrossEntropy(), digits.train, digits.valid, plan, rng(seed))

teachers = DeepEnsemble(networks)
student = BatchEnsemble(fresh_network(9), members=4, rng=rng(9))
fit(student, Distill(teachers, perturb=ODS(step_size=16 / 255)), digits.train, digits.valid, plan, rng(9))

for name, model in {"teachers": teachers, "student": student}.items():
    scores = predict(model, digits.test).scores()
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name}: {size:,} parameters, NLL {scores['nll']:.3f}, mean-KLD {scores['kld']:.3f}")
