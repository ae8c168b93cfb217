"""Questions about cost, answered by ratios against peers in the same run."""
