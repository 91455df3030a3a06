"""What comes in by other doors: packed students, run folders, Python modules, pictures, names, targets."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.torch
import torch
from damage import damaged, number, text
from data_inputs import Files, one_damaged, pixels, write
from judge import Call, Kind
from PIL import Image

from polyphony import Student, export_student, load_student, resnet
from polyphony._util.text import UserError
from polyphony.recipe import foreign_table, read_recipe
from polyphony.recipe.foreign import PythonNetwork
from polyphony.recipe.forms import PythonForm
from polyphony.recipe.perturbations import PythonPerturbation
from polyphony.runs.run import Run
from polyphony.serve.description import Description
from polyphony.serve.export import ExportError
from polyphony.serve.load import CONFIG, WEIGHTS
from polyphony.study.draft import draft
from polyphony.study.pretrained import Preprocessing
from polyphony.study.status import run_status

OWN = (UserError,)
KEPT = Path(__file__).parents[1] / "study" / "kept"
CLASSES, SIDE = ("a", "b", "c"), 8

# Packed students


FORMS = (
    "batch_ensemble",
    "mimo",
    "hydra",
    "latent_be",
    "single",
    "dirichlet",
    "proxy_dirichlet",
    "separate",
    "low_rank",
    "dlf",
)


@cache
def packed(form: str) -> tuple[dict[str, Any], bytes]:
    """What an honest config.json says, and the weights beside it."""
    said: dict[str, Any] = {
        "network": {"kind": "resnet", "depth": 8, "width": 2},
        "form": {"kind": form},
        "members": 2,
        "classes": CLASSES,
        "shape": [3, SIDE, SIDE],
        "temperature": 1.2,
        "method": "kd",
        "seed": 0,
        "data": "mine",
        "recipe": "0" * 64,
        "weights": "",
        "scores": {"acc": 0.5},
    }
    network = Description.read(said, "here").build()
    data = safetensors.torch.save({k: v.contiguous() for k, v in network.state_dict().items()})
    return said | {"weights": sha256(data).hexdigest()}, data


NETWORKS: tuple[Any, ...] = (
    {"kind": "resnet", "depth": 2000, "width": 4096},
    {"kind": "resnet", "depth": 8, "width": 4096},
    {"kind": "wide_resnet", "depth": 10, "widen": 256},
    {"kind": "resnet", "depth": 14, "width": 2},
    {"kind": "python", "name": "os:system", "args": {"command": "touch here"}},
    {"kind": "python", "name": "subprocess:run"},
    {"kind": "timm", "name": "../x"},
    {"kind": "transformers", "name": "/etc"},
    "resnet",
    None,
)
VALUES: dict[str, tuple[Any, ...]] = {
    "network": NETWORKS,
    "form": (*({"kind": form} for form in FORMS), {"kind": "batch_ensemble", "factor_std": 1e308}, 3, {}),
    "members": (1, 3, 1024, 10**9, 2.0, True),
    "classes": (["a"], ["a"] * 3, [str(k) for k in range(10**4)], ["\x1b[2J", "b", "c"], "abc", []),
    "shape": ([1, 8, 8], [3, 10**6, 10**6], [3, 0, 0], [3, 8], [3, 9, 7], [2**62, 1, 1]),
    "temperature": (1e308, 1e-320, inf, nan, 0, -1),
    "scores": ({"acc": nan}, {"x" * 5000: 1.0}, []),
}


def hostile_config(random: Random, said: dict[str, Any]) -> dict[str, Any]:
    key = random.choice(sorted(said))
    if random.random() < 0.1:
        return {name: value for name, value in said.items() if name != key}
    odd = random.choice((number(random), text(random), None, [], {}, {"a": {"b": []}}, "[" * 3000))
    value = random.choice(VALUES[key]) if key in VALUES and random.random() < 0.8 else odd
    return said | {key: value}


def students(random: Random, folder: Path) -> Call:
    """A packed folder: its config in bytes or in values, or weights with a hash that agrees."""
    said, data = packed(random.choice(FORMS))
    way = random.randrange(4)
    if way == 0:
        data = damaged(random, data)
        said = said | {"weights": sha256(data).hexdigest()} if random.random() < 0.8 else said
    for _ in range(random.choice((1, 1, 2)) if way in (1, 2) else 0):
        said = hostile_config(random, said)
    files = {CONFIG: json.dumps(said).encode("utf-8", "replace"), WEIGHTS: data}
    if way == 3:
        files[CONFIG] = damaged(random, files[CONFIG])
    write(folder, files)
    if random.random() < 0.03:
        special(folder / random.choice((CONFIG, WEIGHTS)))

    def call() -> None:
        answers = load_student(folder).predict(np.zeros((2, SIDE, SIDE, 3), np.uint8))
        assert answers.probabilities.shape[0] == 2
        torch.testing.assert_close(answers.probabilities.sum(-1), torch.ones(2, dtype=torch.float64))

    return call


def special(path: Path) -> None:
    """A pipe in the place of a file: who opens it waits for ever."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


# Networks of libraries, which take what they are told


TIMM_ARGS: tuple[dict[str, Any], ...] = (
    {},
    {"pretrained": True},
    {"checkpoint_path": "/etc/passwd"},
    {"pretrained_cfg": {"file": "/etc/passwd", "url": "http://localhost:1"}},
    {"pretrained_cfg_overlay": {"hf_hub_id": "x/y"}},
    {"cache_dir": "/"},
    {"features_only": True},
    {"num_classes": 7},
    {"img_size": 10**6},
    {"embed_dim": 10**6},
    {"depth": 10**6},
    {"layers": [10**6, 10**6, 10**6, 10**6]},
    {"act_layer": "os.system"},
    {"drop_rate": "x"},
    {"scriptable": True},
    {"": None},
)
CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "model_type": "vit",
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "image_size": 8,
    },
    {"model_type": "vit", "hidden_size": 10**6, "num_attention_heads": 1},
    {"model_type": "vit", "num_hidden_layers": 10**6},
    {"model_type": "vit", "image_size": 10**9, "patch_size": 1},
    {"model_type": "vit", "hidden_size": -1},
    {"model_type": "vit", "auto_map": {"AutoConfig": "x--y.Z"}},
    {"model_type": "vit", "_name_or_path": "/etc", "_attn_implementation": "x/y"},
    {"model_type": "vit", "hidden_act": "os.system"},
    {"model_type": "timm_wrapper", "architecture": "resnet18", "pretrained": True},
    {"model_type": "nothing"},
    {"model_type": ["vit"]},
    {"hidden_size": 8},
    {},
)


def libraries(random: Random, folder: Path) -> Call:
    """A packed student whose network timm or transformers is to make."""
    said, data = packed(random.choice(FORMS))
    timm = {"kind": "timm", "name": random.choice(("test_resnet", "test_vit", "../x", "hf-hub:x/y", ""))}
    if random.random() < 0.5:
        network: dict[str, Any] = timm | {"args": random.choice(TIMM_ARGS)}
    else:
        network = {"kind": "transformers", "config": random.choice(CONFIGS)}
    odd = random.choice((None, None, "size", "mean", "std"))
    network = network if odd is None else network | {odd: random.choice((number(random), [nan], [0.0], "x"))}
    write(folder, {CONFIG: json.dumps(said | {"network": network}).encode(), WEIGHTS: data})
    return lambda: load_student(folder)


# Files of weights that torch.save made of anything


def odd_state(random: Random) -> Any:
    """What a trainer might have saved, or nobody would."""
    state: Any = resnet(8, 3, width=2).state_dict()
    name = random.choice(sorted(state))
    odd = random.choice(
        (
            torch.zeros(0),
            torch.zeros(1 << 22),
            torch.zeros(3, dtype=torch.complex64),
            torch.full(state[name].shape, nan),
            torch.zeros(3).to_sparse(),
            torch.zeros(2, device="meta"),
            torch.tensor([1, 2], dtype=torch.bool),
            None,
            "x",
            [1] * 1000,
            {},
        )
    )
    state = state | {name: odd} if random.random() < 0.7 else {f"module.{k}": v for k, v in state.items()}
    for _ in range(random.choice((0, 1, 1, 2, 300))):
        state = {random.choice(("state_dict", "model", "ema", text(random))): state}
    return random.choice((state, state, state, [state], odd))


def saved(random: Random, folder: Path) -> Call:
    stream, file = io.BytesIO(), folder / random.choice(("w.pt", "w.pth", "w.bin", "w"))
    torch.save(odd_state(random), stream, _use_new_zipfile_serialization=random.random() < 0.8)
    content = stream.getvalue()
    if random.random() < 0.2 and zipfile.is_zipfile(stream):
        content = bomb(content)
    file.write_bytes(damaged(random, content) if random.random() < 0.3 else content)
    if random.random() < 0.03:
        special(file)
    from polyphony.nn.weights import load_weights

    return lambda: load_weights(resnet(8, 3, width=2), file)


def bomb(content: bytes) -> bytes:
    """The same archive, a tensor of it replaced by sixty-four million zeros that take a few bytes."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, True) as new,
    ):
        for info in old.infolist():
            new.writestr(
                info.filename, bytes(1 << 26) if info.filename.endswith("/data/1") else old.read(info)
            )
    return out.getvalue()


# Run folders


@cache
def kept_run() -> Files:
    """The run folder that is kept to be opened by every version to come."""
    return {str(path.relative_to(KEPT)): path.read_bytes() for path in KEPT.rglob("*") if path.is_file()}


def runs(random: Random, folder: Path) -> Call:
    files = kept_run()
    chosen = random.choice((sorted(files), ["recipe.json", "scores.csv", "analysis/temperatures.csv"]))
    names = [name for name in chosen if name in files]
    name = random.choice(names)
    write(folder, files | {name: damaged(random, files[name])})
    if random.random() < 0.02:
        special(folder / name)

    def call() -> None:
        run_status(folder)
        run = Run.open(folder)
        assert all(0 < value < inf for value in run.temperatures.values())
        assert run.curves is not None
        for model in run.models:
            assert len(run.logs(model)) > 0
            run.seconds(model), run.adopted(model), run.pooled(model, "test")
        load_student(folder)

    return call


# kind = "python"


MODULES = (
    "raise ValueError('x' * 5000)",
    "raise RuntimeError('\\x1b[2J\\n' * 3)",
    "import nothing_like_this",
    "def make(:",
    "\0",
    "import sys; sys.exit(3)",
    "raise SystemExit('bye')",
    "raise RecursionError",
    "raise BaseException('no')",
    "def make(**given): raise BaseException",
    "raise MemoryError",
    "make = 7",
    "",
    "class make: pass",
    "class make:\n    needs_student = 7\n    def __init__(self, **given): raise OSError",
    "def make(**given): return make(**given)",
    "def make(**given): import sys; sys.exit('bye')",
    "def make(**given): raise StopIteration",
    "def make(**given): raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})",
    "def make(): pass",
    "def make(*given): return 3",
    "def make(**given): return None",
    "def make(**given): return make",
    "def make(**given):\n    import torch\n    return torch.nn.Linear(1, 1)",
    "def make(**given):\n    import torch\n    return torch.nn.Module()",
    "from torch.nn import Identity as make",
    "from polyphony.recipe.forms import FormTable as make",
    "from polyphony.distill.perturb import ODS as make",
    "def __getattr__(name): raise ZeroDivisionError",
)


def modules(random: Random, folder: Path) -> Call:
    """A module of the user's own that is not what it should be, as a network, a form or a perturbation."""
    name = f"mod_{random.randrange(10**12)}"
    (folder / f"{name}.py").write_text(random.choice(MODULES))
    named = f"{name}:{random.choice(('make', 'make', 'make', 'other', 'make.x', '__dict__'))}"
    args = random.choice(({}, {}, {"x": 1}, {"classes": 3}, {"self": 1}, {text(random): number(random)}))
    given = {"kind": "python", "name": named, "args": args}
    makers: tuple[Callable[[], object], ...] = (
        lambda: checked(PythonNetwork, given, folder).build(3, 3),
        lambda: checked(PythonForm, given, folder).resolved(),
        lambda: checked(PythonPerturbation, given, folder).build(0.1),
        lambda: checked(PythonNetwork, given, folder).spec(),
    )
    return partial(unseen, random.choice(makers), folder, name)


def checked(kind: Any, given: dict[str, Any], folder: Path) -> Any:
    return kind.model_validate(given, context={"folder": str(folder)})


def unseen(make: Callable[[], object], folder: Path, name: str) -> None:
    """What is made, and no trace of the module in this process or beside the file."""
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        make()
    finally:
        sys.dont_write_bytecode = before
        sys.modules.pop(name, None)
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def network_names(random: Random, folder: Path) -> Call:
    """What --network may be told, and a recipe's table of a network."""
    name = random.choice(
        ("", "mod:make", "os:system", "timm:", ":", "a:b:c", text(random), f"{text(random)}:x")
    )
    if random.random() < 0.5:
        return lambda: foreign_table(name, folder)
    table = f"teachers.network={{kind='python', name={json.dumps(name)}, args={{a={number(random)}}}}}"
    return lambda: read_recipe("digits", [table], code=False)


# Pictures to predict, and where to export


@cache
def student() -> Student:
    said, _ = packed("batch_ensemble")
    description = Description.read(said, "here")
    return Student(description.build().eval(), description)


@cache
def picture() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(9, 12, 3)).save(stream, "PNG")
    return stream.getvalue()


def odd_images(random: Random, folder: Path) -> Any:
    """Images as people have them, and as they do not."""
    file = folder / random.choice(("a.png", "b.jpg", "c"))
    file.write_bytes(damaged(random, picture()))
    shape = random.choice(
        (
            (2, 8, 8, 3),
            (2, 3, 8, 8),
            (2, 8, 8),
            (8, 8),
            (0, 8, 8, 3),
            (2, 0, 0, 3),
            (2, 4, 4, 4),
            (),
            (1,) * 9,
        )
    )
    kind = random.choice(("u1", "f4", "f8", "f2", "i8", "?", "c8", "U3", "O", "M8[s]", "u2"))
    array = np.zeros(shape, kind)
    if array.size and array.dtype.kind == "f":
        array.flat[0] = random.choice((0.5, nan, inf, -1, 255))
    return random.choice(
        (
            file,
            str(file),
            [file, file],
            text(random),
            [text(random)],
            folder,
            folder / "missing.png",
            array,
            [array],
            [array, file],
            torch.zeros(random.choice(((2, 3, 8, 8), (1,), ()))),
            torch.zeros(2, 3, 8, 8, device="meta"),
            torch.zeros(2, 3, 8, 8).to_sparse(),
            Image.new(random.choice(("RGB", "L", "RGBA", "P", "I;16", "F", "CMYK", "1")), (5, 3)),
            Image.new("RGB", (0, 3)),
            None,
            7,
            {},
            [],
            b"x",
            [None],
        )
    )


def pictures(random: Random, folder: Path) -> Call:
    images = odd_images(random, folder)
    batch = random.choice((250, 250, 250, 250, 250, 250, 1, 10**9, 0, 1.5))

    def call() -> None:
        answers = student().predict(images, batch)
        assert bool(answers.probabilities.isfinite().all())

    return call


def targets(random: Random, folder: Path) -> Call:
    """A file that a student cannot be exported to, or images that it cannot be compared on."""
    good = torch.zeros(3, 3, SIDE, SIDE, dtype=torch.uint8)
    if random.random() < 0.6:
        to: Any = random.choice(
            ("x", "x.ONNX", "x.onnx.", ".onnx", "x.pt", "", "x.onnx\0", folder, text(random))
        )
        images: Any = good
    else:
        to, images = folder / random.choice(("x.onnx", "x.pt2")), odd_images(random, folder)
        images = good[:0] if isinstance(images, torch.Tensor) else images
    before = sorted(folder.iterdir())

    def call() -> None:
        try:
            export_student(student(), to, images)
        finally:
            assert sorted(folder.iterdir()) == before

    return call


# polyphony init


@cache
def init_files() -> Files:
    stream = io.BytesIO()
    np.savez(stream, images=pixels(12, SIDE, SIDE, 3), labels=np.arange(12) % 3)
    weights = safetensors.torch.save(resnet(8, 3, width=2).state_dict())
    make = b"from polyphony import resnet\ndef make(classes, channels): return resnet(8, classes, width=2)"
    return {
        "images.npz": stream.getvalue(),
        "a.safetensors": weights,
        "b.safetensors": weights,
        "mod.py": make,
    }


def drafts(random: Random, folder: Path) -> Call:
    name, files = f"mod_{random.randrange(10**12)}", dict(init_files())
    files[f"{name}.py"] = files.pop("mod.py")
    if random.random() < 0.6:
        files = one_damaged(random, {k: v for k, v in files.items() if not k.endswith(".py")}) | {
            f"{name}.py": files[f"{name}.py"]
        }
    write(folder, files)
    images = folder / random.choice(
        ("images.npz", "images.npz", "images.npz", "missing", ".", "a.safetensors")
    )
    weights = [folder / each for each in ("a.safetensors", "b.safetensors", "none.pt")]
    weights = random.choice((weights[:2], weights[:2], weights[:2], weights[:1], weights[1:], []))
    network = random.choice((f"{name}:make", f"{name}:make", f"{name}:make", "nothing:make", text(random)))
    size = random.choice((None, None, None, 8, 4, 0, -1, 10**6))
    told = random.choice(((), ((0.5,), (0.5,)), ((0.5,), None), ((0.1, 0.2), (1.0, 2.0)), ((0.0,), (0.0,))))
    make = partial(
        draft, images, weights, network, folder / "own.toml", Preprocessing(size, *told), lambda line: None
    )
    return partial(unseen, make, folder, name)


KINDS = (
    Kind("packed students", students, OWN),
    Kind("saved weights", saved, OWN),
    Kind("run folders", runs, OWN),
    Kind("Python modules", modules, OWN),
    Kind("names of networks", network_names, OWN),
    Kind("pictures to predict", pictures, OWN),
    Kind("targets of export", targets, (*OWN, ExportError)),
    Kind("networks given to init", drafts, OWN),
)
LIBRARIES = (Kind("networks of libraries", libraries, OWN),)  # which take seconds to be imported
