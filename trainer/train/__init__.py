"""From judged groups to a checkpoint: selection, batches, gradient steps, backends."""
