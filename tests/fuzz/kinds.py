"""All kinds of bad input."""

from __future__ import annotations

import data_inputs
import door_inputs
import export_inputs
import recipe_inputs
import run_inputs
from judge import Kind

KINDS: tuple[Kind, ...] = (*data_inputs.KINDS, *recipe_inputs.KINDS, *run_inputs.KINDS, *door_inputs.KINDS)
ALL: tuple[Kind, ...] = (*KINDS, *door_inputs.LIBRARIES, *export_inputs.KINDS)
