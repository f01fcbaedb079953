"""Find where and why two training runs part: `Tap` writes what a run computes, `bisect` compares two runs."""
