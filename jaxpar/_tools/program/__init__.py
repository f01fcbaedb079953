"""`program`: a judge of compiled training steps, which reads the text of the program that will run."""

from .program import program as program
from .report import ProgramReport as ProgramReport
