"""A trained student as others use it: loaded, asked, exported, packed."""

from polyphony.serve.load import load_student
from polyphony.serve.student import Answers, Student

__all__ = ["Answers", "Student", "load_student"]
