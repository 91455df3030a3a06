"""Use a trained student: load, predict, export, pack."""

from polyphony.serve.export import export_student
from polyphony.serve.graph import ExportError
from polyphony.serve.load import load_student
from polyphony.serve.student import AnswerError, Answers, Student

__all__ = ["AnswerError", "Answers", "ExportError", "Student", "export_student", "load_student"]
