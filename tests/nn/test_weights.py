"""Files of weights are matched by name and loaded completely, or rejected with a clear message."""

from __future__ import annotations

import pickle
import re
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from polyphony.data import DataError
from polyphony.nn.weights import WeightsError, load_weights, read_stored, read_weights


def network(width: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in network().state_dict().items()}


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in network().state_dict().items() if key != name}


SAVED = {
    "plain": lambda: network().state_dict(),
    "nested": lambda: {"state_dict": network().state_dict(), "epoch": 3, "best": 0.9},
    "nested twice": lambda: {"model": {"state_dict": prefixed("module.")}, "args": {"lr": 0.1}},
    "data parallel": lambda: prefixed("module."),
    "compiled": lambda: prefixed("_orig_mod."),
    "compiled and parallel": lambda: {"model_state_dict": prefixed("module._orig_mod.")},
    "a script's": lambda: {"net": prefixed("net."), "acc": 0.9},
    "lightning": lambda: {"state_dict": prefixed("model.")},
    "averaged": lambda: AveragedModel(network()).state_dict(),
    "any prefix": lambda: prefixed("lit.backbone."),
    "averaged by hand": lambda: {"ema": prefixed("module."), "epoch": 3},
    "in another dict": lambda: {
        "weights": network().state_dict(),
        "optimizer": {"state": {0: {"step": torch.ones(1)}}},
    },
    "without counts": lambda: without("1.num_batches_tracked"),
}


@pytest.mark.parametrize("kind", SAVED)
def test_weights_are_found_however_trainers_save_them(tmp_path, kind):
    torch.save(SAVED[kind](), tmp_path / "a.pt")
    other = network()
    nn.init.zeros_(other[0].weight)
    load_weights(other, tmp_path / "a.pt")
    assert all(torch.equal(value, network().state_dict()[name]) for name, value in other.state_dict().items())


def test_a_key_of_safetensors_is_rejected(tmp_path):
    safetensors.torch.save_file(network().state_dict(), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"a\.safetensors has one set of weights.*leave out '#ema'"):
        load_weights(network(), tmp_path / "a.safetensors#ema")


def test_safetensors_are_read(tmp_path):
    safetensors.torch.save_file(network().state_dict(), tmp_path / "a.safetensors")
    other = network()
    nn.init.zeros_(other[0].weight)
    load_weights(other, tmp_path / "a.safetensors")
    assert torch.equal(other[0].weight, network()[0].weight)


def test_a_prefix_that_the_network_has_itself_stays(tmp_path):
    inner = nn.ModuleDict({"model": network()})
    torch.save(inner.state_dict(), tmp_path / "a.pt")
    load_weights(inner, tmp_path / "a.pt")


class TwoNames(nn.Module):
    """A network whose first layers have two names, as in feature extractors."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = network()
        self.features = self.backbone[:2]


def test_a_layer_of_two_names_may_have_one_in_the_file(tmp_path):
    saved, mine = TwoNames(), TwoNames()
    nn.init.zeros_(mine.backbone[0].weight)
    safetensors.torch.save_model(saved, tmp_path / "a.safetensors")
    load_weights(mine, tmp_path / "a.safetensors")
    assert torch.equal(mine.features[0].weight, saved.backbone[0].weight)


SMALL = {"image_size": 16, "patch_size": 8, "num_labels": 3}
LAYERS = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
STAGES = {"patch_size": 2, "embed_dim": 4, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2}


@pytest.mark.parametrize(("kind", "sizes"), [("ViT", LAYERS), ("Dinov2", LAYERS), ("Swin", STAGES)])
def test_a_model_of_transformers_takes_the_file_that_it_has_saved(tmp_path, capfd, kind, sizes):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{kind}Config")(**SMALL | sizes)
    saved, mine, other = (
        getattr(transformers, f"{kind}ForImageClassification")(each)
        for each in (config, config, type(config)(**SMALL | sizes | {"num_labels": 4}))
    )
    saved.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    assert read_weights(file).keys() != mine.state_dict().keys()
    capfd.readouterr()
    load_weights(mine, file)
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in mine.state_dict().items())
    with pytest.raises(WeightsError, match=r"'classifier.weight' is \[3, \d+\], but the network's is \[4, "):
        load_weights(other, file)
    safetensors.torch.save_file(read_weights(file) | {"more": torch.ones(1)}, file)
    with pytest.raises(WeightsError, match="is it from another network"):
        load_weights(mine, file)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: without("2.bias"), "lacks '2.bias', which the network needs"),
        (lambda: {"0.weight": torch.ones(3, 4)}, "lacks '0.bias' and 6 more, which the network needs"),
        (
            lambda: network().state_dict() | {"9.w": torch.ones(1)},
            "has '9.w', which the network does not have",
        ),
        (lambda: network(5).state_dict(), "is [5, 4], but the network's is [3, 4]: is it from another net"),
        (
            lambda: prefixed("a.") | {"b.w": torch.ones(1)},
            "which the network needs, and has 'a.0.bias' and 9",
        ),
        (lambda: {"epoch": 3}, "holds no weights by name (its keys are 'epoch')"),
        (
            lambda: {"ema": network().state_dict(), "swa": network().state_dict()},
            "holds weights under 'ema', 'swa': pick one, as a.pt#ema",
        ),
        (lambda: [torch.ones(2)], "holds no weights by name"),
    ],
)
def test_weights_of_another_network_are_one_sentence_and_change_nothing(tmp_path, content, sentence):
    torch.save(content(), tmp_path / "a.pt")
    mine = network()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    with pytest.raises(WeightsError, match=re.escape(sentence)):
        load_weights(mine, tmp_path / "a.pt")
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())


class Trap:
    def __reduce__(self):
        return (Path("executed").touch, ())


def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.pt").write_bytes(pickle.dumps(Trap()))
    torch.save({"state_dict": Trap()}, "b.pt")
    for name in ("a.pt", "b.pt"):
        with pytest.raises(WeightsError, match=re.escape(f"{name} cannot be read as weights: it ")):
            read_weights(Path(name))
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_what_is_no_file_of_weights_is_one_sentence(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_weights(path)
    path.mkdir()
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_weights(path)
    path.rmdir()
    for content in (b"", b"nothing", b"\x80\x02}q\x00."):
        path.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(path))):
            read_weights(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", "x")
    with pytest.raises(WeightsError):
        read_weights(path)


def test_weights_under_a_key_are_picked_by_its_name(tmp_path):
    ours, averaged = (
        network().state_dict(),
        {name: 2 * value for name, value in network().state_dict().items()},
    )
    torch.save({"model": ours, "ema": {"shadow": averaged, "decay": 0.99}}, tmp_path / "a.pt")
    for name, weights in (("a.pt", ours), ("a.pt#model", ours), ("a.pt#ema.shadow", averaged)):
        loaded = read_weights(tmp_path / name)
        assert all(torch.equal(loaded[key], weights[key]) for key in weights)
    with pytest.raises(WeightsError, match=r"no weights under 'swa', only 'model', 'ema\.shadow'"):
        read_weights(tmp_path / "a.pt#swa")
    torch.save(averaged, tmp_path / "a.pt#model")  # a file that is called so
    assert torch.equal(read_weights(tmp_path / "a.pt#model")["0.weight"], averaged["0.weight"])


def test_the_set_of_weights_that_was_chosen_and_the_others_are_returned(tmp_path):
    weights = network().state_dict()
    torch.save({"ema_state_dict": weights, "model": weights, "state_dict": weights}, tmp_path / "a.pt")
    for name, key, others in (
        ("a.pt", "state_dict", ("ema_state_dict", "model")),
        ("a.pt#model", "model", ("ema_state_dict", "state_dict")),
    ):
        stored = read_stored(tmp_path / name)
        assert (stored.key, stored.other_keys) == (key, others)
    torch.save(weights, tmp_path / "a.pt")
    assert read_stored(tmp_path / "a.pt")[1:] == ("", ())


CONVERTED = {
    "whole": lambda path: torch.save(network(), path),
    "namespace": lambda path: torch.save({"args": Namespace(lr=1), "model": network().state_dict()}, path),
    "module in a dict": lambda path: torch.save({"epoch": 1, "net": network()}, path),
    "script": lambda path: torch.jit.save(torch.jit.trace(network().eval(), torch.ones(2, 4)), path),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("kind", CONVERTED)
def test_the_line_that_converts_a_file_works(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CONVERTED[kind]("a.pt")
    with pytest.raises(WeightsError) as refused:
        read_weights(Path("a.pt"))
    line = str(refused.value).rpartition("convert it: ")[2]
    exec(line, {"torch": torch})
    loaded = read_weights(Path("a-weights.pt"))
    assert all(torch.equal(loaded[key], value) for key, value in network().state_dict().items())


def test_a_damaged_file_of_an_unknown_class_is_one_sentence(tmp_path):
    torch.save({"model": Namespace(marked="value")}, tmp_path / "a.pt")
    content = (tmp_path / "a.pt").read_bytes()
    assert content.count(b"marked") == 1
    (tmp_path / "a.pt").write_bytes(content.replace(b"marked", b"broken"))  # its checksum is wrong now
    with pytest.raises(WeightsError, match=r"an object of class argparse\.Namespace; to load it would run"):
        read_weights(tmp_path / "a.pt")


@pytest.mark.parametrize("packed", [True, False])
def test_a_truncated_file_is_called_so(tmp_path, packed):
    path = tmp_path / "a.pt"
    torch.save(network().state_dict(), path, _use_new_zipfile_serialization=packed)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(WeightsError, match="it is truncated"):
        read_weights(path)
