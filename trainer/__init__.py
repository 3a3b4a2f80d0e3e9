"""From checked windows to a better model: group, thin, judge, train, evaluate, promote."""
