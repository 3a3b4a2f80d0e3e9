"""A simulated market with agents of known skill: data for anyone, and the truth to test against."""
