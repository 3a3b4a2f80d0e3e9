"""The one door for reading the ledger: what reports, lineage, console and API show."""
