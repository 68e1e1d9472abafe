"""Two people who decide on approvals. Their ids are beyond those that a database gives to the users of other tests."""

from tools.approvals import Voter

ANNA, BERT = Voter(pk=2**62, name="anna"), Voter(pk=2**62 + 1, name="bert")
