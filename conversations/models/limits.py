"""Bounds that rows of several subjects share."""

# As large a number of a message as every database has room for.
MAX_SEQ = 2**63 - 1

# Answers of a turn: more than any limit lets it have.
MAX_ANSWERS = 2**32

# Characters of a reason, given by people or told to them.
MAX_REASON = 500

# Characters of an e-mail address, as RFC 5321 has it.
MAX_ADDRESS = 254
