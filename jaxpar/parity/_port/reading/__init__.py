"""Reading: the user's source, and what it did while the module was made and called."""
