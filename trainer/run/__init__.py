"""One training command while it works: plan, session, stages, view, folder, and what follows on training."""
