"""Rendering: a result as text with tables, or as one JSON document."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .compare import KINDS, Difference, Verdict
from .run import Epoch, Learned, Result
from .settings import TOLERANCE, version
