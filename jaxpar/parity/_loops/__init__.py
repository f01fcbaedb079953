"""Compare two training loops without a model: both train the same parameters on made-up gradients."""
