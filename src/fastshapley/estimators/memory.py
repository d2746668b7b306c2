"""How much work the estimators do at once. The limits bound memory; read them at call time, as tests lower them."""

EVALUATIONS_PER_CALL = 1 << 16  # Coalitions times rows that one call of a value function receives.
ENTRIES_PER_BLOCK = 1 << 24  # Entries of the largest tensor that a block of rows needs.
BLOCK_BYTES = 1 << 27  # Memory for the coalitions and the solution of a block of rows.
