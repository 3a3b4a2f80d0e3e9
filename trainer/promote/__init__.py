"""The gate, the canary, publishing a release and taking it back."""
