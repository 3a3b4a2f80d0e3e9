"""Who is compared with whom, and who is left out before the judge is paid."""
