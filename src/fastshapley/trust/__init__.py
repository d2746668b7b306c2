"""How far values are from the truth: the report, error bars, and drift."""
