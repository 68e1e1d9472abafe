"""An app whose code lets secrets out, in every way the tests know."""
