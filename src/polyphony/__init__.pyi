from polyphony.data import (
    Augmentation as Augmentation,
    Options as Options,
    Split as Split,
    Splits as Splits,
    load as load,
)
from polyphony.distill import (
    CrossEntropy as CrossEntropy,
    Distill as Distill,
    DistillDistribution as DistillDistribution,
    DistillFactors as DistillFactors,
    DistillMean as DistillMean,
    DistillProxy as DistillProxy,
    match_step_size as match_step_size,
)
from polyphony.distill.perturb import (
    Adversarial as Adversarial,
    Chain as Chain,
    Clean as Clean,
    Diversify as Diversify,
    Gaussian as Gaussian,
    Mixup as Mixup,
    ODS as ODS,
    Perturbation as Perturbation,
)
from polyphony.ensembles import (
    BatchEnsemble as BatchEnsemble,
    DeepEnsemble as DeepEnsemble,
    Dirichlet as Dirichlet,
    Ensemble as Ensemble,
    Hydra as Hydra,
    LatentBE as LatentBE,
    LatentFactor as LatentFactor,
    LoRAEnsemble as LoRAEnsemble,
    MIMO as MIMO,
    Separate as Separate,
    Single as Single,
)
from polyphony.metrics import Predictions as Predictions
from polyphony.nn import (
    Normalize as Normalize,
    adapt as adapt,
    add_members as add_members,
    resnet as resnet,
    wide_resnet as wide_resnet,
)
from polyphony.recipe import Recipe as Recipe, read_recipe as read_recipe
from polyphony.serve import (
    Answers as Answers,
    Student as Student,
    export_student as export_student,
    load_student as load_student,
)
from polyphony.training.fit import Plan as Plan, fit as fit
from polyphony.training.predict import predict as predict

__version__: str
