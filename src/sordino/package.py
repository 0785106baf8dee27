"""Where this program lies, and its version."""

from pathlib import Path

HOME = Path(__file__).parent
VERSION = "0.1.0"
