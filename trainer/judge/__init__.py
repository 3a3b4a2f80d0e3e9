"""The judge: what it is shown, how its verdicts are taken, stored and paid for."""
