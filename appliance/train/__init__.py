"""Everything that imports torch: the policy, its batches and losses, the cold start, the trainer process."""
