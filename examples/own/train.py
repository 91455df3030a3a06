"""Train four small ResNets in a plain PyTorch loop: the teachers of a user who is new to Polyphony.

    python examples/own/train.py TINY_IMAGENET OUT        (TINY_IMAGENET: the unpacked tiny-imagenet-200)

writes OUT/photos/{train,valid,test}/GROUP/*.JPEG, seven groups of 16 classes of TinyImageNet, and the weights
OUT/a.pt … OUT/d.pt. From each class, nine training pictures are for training and three for validation; four
validation pictures are for test.
"""

import shutil
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from mynets import SmallResNet
from PIL import Image
from torch import Tensor, nn

GROUPS = {  # WordNet numbers: TinyImageNet's names of classes
    "building": "02793495 02814860 02843684 03042490 03160309 03388043 03837869 03930313"
    " 04311004 04366367 04417672 04486054 04532670 04562935 02788148 02699494",
    "clothing": "02669723 02730930 02837789 02883205 02963159 03026506 03404251 03617480"
    " 03763968 03770439 03980874 04133789 04254777 04259630 04371430 04532106",
    "food": "07579787 07583066 07614500 07615774 07695742 07711569 07715103 07720875"
    " 07747607 07749582 07753592 07768694 07871810 07873807 07875152 07920052",
    "insect": "01768244 01770393 01774384 01774750 01784675 02165456 02190166 02206856"
    " 02226429 02231487 02233338 02236044 02268443 02279972 02281406 01983481",
    "mammal": "02085620 02094433 02099601 02106662 02123045 02124075 02125311 02129165"
    " 02132136 02364673 02395406 02403003 02415577 02437312 02480495 02509815",
    "tool": "02815834 02841315 02906734 02909870 03085013 03255030 03400231 03706229"
    " 03804744 03970156 04074963 04328186 04376876 04398044 04596742 04597913",
    "vehicle": "02814533 02917067 03100240 03393912 03444034 03447447 03599486 03649909"
    " 03662601 03670208 03796401 03977966 04146614 04285008 04465501 04487081",
}
PARTS = {"train": slice(0, 9), "valid": slice(9, 12)}  # of the training pictures of a class
TEST = slice(0, 4)  # of the validation pictures of a class
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPOCHS, BATCH = 30, 64


def copy_pictures(source: Path, to: Path) -> None:
    """Copy pictures from TinyImageNet's layout into a folder for each split and group."""
    held_out = defaultdict(list)
    for line in (source / "val" / "val_annotations.txt").read_text().splitlines():
        name, number, *_ = line.split("\t")
        held_out[number].append(source / "val" / "images" / name)
    for group, numbers in GROUPS.items():
        for number in (f"n{digits}" for digits in numbers.split()):
            pictures = sorted((source / "train" / number / "images").glob("*.JPEG"))
            parts = {part: pictures[rows] for part, rows in PARTS.items()} | {"test": held_out[number][TEST]}
            for part, files in parts.items():
                folder = to / part / group
                folder.mkdir(parents=True, exist_ok=True)
                for file in files:
                    shutil.copy(file, folder)


def read(folder: Path) -> tuple[Tensor, Tensor]:
    """Normalised images [n 3 64 64] and labels [n]."""
    files = sorted(folder.glob("*/*.JPEG"))
    groups = sorted(GROUPS)
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    images = (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return images, torch.tensor([groups.index(file.parent.name) for file in files])


def augmented(images: Tensor) -> Tensor:
    """The batch with one random shift of up to 8 pixels, every other image flipped horizontally."""
    down, right = torch.randint(-8, 9, (2,)).tolist()
    flip = torch.rand(len(images)) < 0.5
    return images.roll((down, right), (2, 3)).where(~flip.view(-1, 1, 1, 1), images.flip(3))


def train(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """Train one network with AdamW and a one-cycle schedule."""
    torch.manual_seed(seed)
    net = SmallResNet(num_classes=len(GROUPS))
    steps = EPOCHS * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(augmented(images[rows])), labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def main(source: Path, out: Path) -> None:
    """Copy the pictures, train four networks, save their weights, and print their validation accuracy."""
    copy_pictures(source, out / "photos")
    images, labels = read(out / "photos" / "train")
    valid, valid_labels = read(out / "photos" / "valid")
    for seed, name in enumerate("abcd"):
        net = train(images, labels, seed)
        torch.save({"state_dict": net.state_dict()}, out / f"{name}.pt")
        with torch.no_grad():
            accuracy = (net(valid).argmax(1) == valid_labels).float().mean()
        print(f"{name}.pt: accuracy {accuracy:.1%} on {len(valid)} validation pictures", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
