"""Data sets as splits of uint8 tensors: readers, augmented batches, corruptions."""

from polyphony.data.batches import Augmentation, batch_count, batches, epoch_steps, labelled_rows, pixels
from polyphony.data.files import DataError, MissingCorruptedError, MissingDataError
from polyphony.data.load import load, outline
from polyphony.data.options import Options
from polyphony.data.shifted import Corrupted, corrupted, load_unknown
from polyphony.data.splits import Split, Splits

__all__ = [
    "Augmentation",
    "Corrupted",
    "DataError",
    "MissingCorruptedError",
    "MissingDataError",
    "Options",
    "Split",
    "Splits",
    "batch_count",
    "batches",
    "corrupted",
    "epoch_steps",
    "labelled_rows",
    "load",
    "load_unknown",
    "outline",
    "pixels",
]
